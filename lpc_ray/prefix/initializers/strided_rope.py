import torch
from transformers import PreTrainedModel

from lpc_ray.prefix.attention import forward_cache
from lpc_ray.prefix.initializers.base import Initialized, require
from lpc_ray.prefix.initializers.rope import inverse_frequencies, rerotate


def strided_rope(model: PreTrainedModel, material: list[int], num_tokens: int) -> Initialized:
    """P evenly spaced tokens of the whole document, their keys re-rotated to positions 0…P−1.

    One forward over all N tokens; indices ⌊linspace(0, N−1, P)⌋; values are copied, keys un-rotated at their old
    position and rotated to the new one in fp32 with the model's own inverse frequencies. METHODS section 6.
    Raises: DataError for material shorter than P; ConfigError where it cannot be exact (several RoPEs, other layouts).
    """
    require(len(material) >= num_tokens, "strided_rope", len(material), f"at least P = {num_tokens}")
    frequencies = inverse_frequencies(model, "strided_rope")
    keys, values = forward_cache(model, material)
    indices = torch.linspace(0, len(material) - 1, num_tokens, dtype=torch.float64).floor().long()
    kept, targets = indices.to(keys.device), torch.arange(num_tokens, device=keys.device)
    moved = rerotate(keys[:, kept], targets - kept, frequencies)
    return Initialized(moved, values[:, kept], {"initializer": "strided_rope"})
