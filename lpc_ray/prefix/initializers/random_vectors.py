import torch
from transformers import PreTrainedModel

from lpc_ray.prefix.attention import forward_cache
from lpc_ray.prefix.initializers.base import Initialized, require


def random_vectors(model: PreTrainedModel, material: list[int], num_tokens: int, seed: int) -> Initialized:
    """N(0, s²) with s the standard deviation of the material's own keys and values, per layer. METHODS section 6.

    Raises: DataError for material of fewer than 2 tokens.
    """
    require(len(material) >= 2, "random_vectors", len(material), "at least 2 (to match their deviation)")
    generator = torch.Generator(device="cpu").manual_seed(seed)
    drawn = []
    for tensor in forward_cache(model, material[: max(num_tokens, 2)]):
        layers, _, heads, head_dim = tensor.shape
        noise = torch.randn(layers, num_tokens, heads, head_dim, generator=generator)
        drawn.append(noise.to(tensor.device) * tensor.std(dim=(1, 2, 3), keepdim=True))
    return Initialized(drawn[0], drawn[1], {"initializer": "random_vectors", "seed": seed})
