from transformers import PreTrainedModel

from lpc_ray.prefix.attention import forward_cache
from lpc_ray.prefix.initializers.base import Initialized, require


def first_k(model: PreTrainedModel, material: list[int], num_tokens: int) -> Initialized:
    """A forward over the first P tokens of the material. Source: Cartridges, arXiv 2506.06266, section 3.2.

    Raises: DataError for material shorter than P.
    """
    require(len(material) >= num_tokens, "first_k", len(material), f"at least P = {num_tokens}")
    keys, values = forward_cache(model, material[:num_tokens])
    return Initialized(keys, values, {"initializer": "first_k"})
