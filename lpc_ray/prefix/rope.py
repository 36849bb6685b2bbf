"""Turning stored keys to other positions with the model's own RoPE."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from lpc_ray.errors import ConfigError
from lpc_ray.prefix.attention import forward_cache, rounding

SHIFT, TRIED_TOKENS = 7, 8


def inverse_frequencies(model: PreTrainedModel, where: str) -> torch.Tensor:
    """The model's own RoPE inverse frequencies, fp32 [D_rot/2], proved on every layer.

    A forward at positions 7… must give the keys of one at positions 0…, turned by 7. Both see the same hidden states in every
    layer, so that in any dtype no more than the rounding of a key differs. Layers without RoPE, interleaved layouts and a
    second RoPE show here.
    Raises: ConfigError, naming the initializer `where`, when there is no single set that turns every layer's keys.
    """
    rotary = getattr(model.base_model, "rotary_emb", None)
    frequencies = getattr(rotary, "inv_freq", None)
    if frequencies is None:
        raise ConfigError(
            f"{where}: model {model.config.model_type} has no RoPE of one kind in all layers, wanted one set of inverse "
            "frequencies to turn keys by"
        )
    frequencies = frequencies.float()
    ids = [number % model.config.get_text_config().vocab_size for number in range(5, 5 + TRIED_TOKENS)]
    with _same_inputs(model):
        keys, moved = forward_cache(model, ids)[0], forward_cache(model, ids, first_position=SHIFT)[0]
    turned = rerotate(keys, torch.full((TRIED_TOKENS,), SHIFT, device=model.device), frequencies)
    for layer, (got, wanted) in enumerate(zip(turned, moved, strict=True)):
        error, allowed = (got - wanted).abs().max().item(), rounding(model) * wanted.abs().max().item()
        if not error <= allowed:
            raise ConfigError(
                f"{where}: keys of layer {layer}, turned by {SHIFT} positions, are {error:.2e} away from a forward there, "
                f"wanted at most {allowed:.2e}; model {model.config.model_type} rotates in another way"
            )
    return frequencies


@contextmanager
def _same_inputs(model: PreTrainedModel) -> Iterator[None]:
    """Every layer and its attention get in later forwards the hidden states that they got in the first."""
    seen: dict[torch.nn.Module, torch.Tensor] = {}

    def feed(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if args:
            return (seen.setdefault(module, args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": seen.setdefault(module, kwargs["hidden_states"])}

    layers = [module for module in model.base_model.modules() if hasattr(module, "layer_idx")]
    hooks = [module.register_forward_pre_hook(feed, with_kwargs=True) for module in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def rerotate(keys: torch.Tensor, turn: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Turn keys [L, P, H, D] by `turn` positions each (new − old, [P]), in fp32.

    Half-split layout: dimension i pairs with i + D_rot/2; dimensions beyond D_rot = 2 · len(frequencies) are left alone.
    """
    angles = turn.float()[:, None] * frequencies.to(keys.device)[None, :]
    cos, sin = angles.cos()[None, :, None, :], angles.sin()[None, :, None, :]
    half = frequencies.numel()
    first, second, rest = keys.float().split([half, half, keys.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
