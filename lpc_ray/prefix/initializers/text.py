from transformers import PreTrainedModel

from lpc_ray.prefix.attention import forward_cache
from lpc_ray.prefix.initializers.base import Initialized, require


def text(model: PreTrainedModel, text_ids: list[int], num_tokens: int, path: str) -> Initialized:
    """A forward over the first P tokens of any given text, related to the material or not. METHODS section 6.

    text_ids: the tokens of the file `path`. Raises: DataError for a text shorter than P.
    """
    require(len(text_ids) >= num_tokens, f"text ({path})", len(text_ids), f"at least P = {num_tokens}")
    keys, values = forward_cache(model, text_ids[:num_tokens])
    return Initialized(keys, values, {"initializer": "text", "text": path})
