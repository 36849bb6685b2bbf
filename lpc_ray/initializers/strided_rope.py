import torch
from transformers import PreTrainedModel

from lpc_ray.errors import ConfigError
from lpc_ray.initializers.base import Initialized, forward_cache, require
from lpc_ray.initializers.rope import inverse_frequencies, rerotate


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
    _check_first_layer(model, [material[index] for index in indices.tolist()], moved[0])
    return Initialized(moved, values[:, kept], {"initializer": "strided_rope"})


def _check_first_layer(model: PreTrainedModel, token_ids: list[int], moved: torch.Tensor) -> None:
    """Layer 0's keys depend on token and position alone, so a forward at the new positions must give the same."""
    direct = forward_cache(model, token_ids)[0][0]
    error = (direct - moved).abs().max().item()
    tolerance = 0.05 * direct.abs().max().item() if model.dtype == torch.bfloat16 else 1e-3 * direct.abs().max().item()
    if error > tolerance:
        raise ConfigError(
            f"strided_rope: re-rotated keys of layer 0 are {error:.2e} away from a forward at the new positions, wanted at "
            f"most {tolerance:.2e}; model {model.config.model_type} rotates in another way"
        )
