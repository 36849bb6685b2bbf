"""Turning stored keys to other positions with the model's own RoPE."""

import torch
from transformers import PreTrainedModel

from lpc_ray.errors import ConfigError


def inverse_frequencies(model: PreTrainedModel, where: str) -> torch.Tensor:
    """The model's own RoPE inverse frequencies, fp32 [D_rot/2].

    Raises: ConfigError, naming the initializer `where`, when there is no single set.
    """
    rotary = getattr(model.base_model, "rotary_emb", None)
    frequencies = getattr(rotary, "inv_freq", None)
    if frequencies is None:
        raise ConfigError(
            f"{where}: model {model.config.model_type} has no RoPE of one kind in all layers, wanted one set of inverse "
            "frequencies to turn keys by"
        )
    return frequencies.float()


def rerotate(keys: torch.Tensor, turn: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Turn keys [L, P, H, D] by `turn` positions each (new − old, [P]), in fp32.

    Half-split layout: dimension i pairs with i + D_rot/2; dimensions beyond D_rot = 2 · len(frequencies) are left alone.
    """
    angles = turn.float()[:, None] * frequencies.to(keys.device)[None, :]
    cos, sin = angles.cos()[None, :, None, :], angles.sin()[None, :, None, :]
    half = frequencies.numel()
    first, second, rest = keys.float().split([half, half, keys.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
