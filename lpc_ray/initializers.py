"""Where a prefix starts: material → keys and values [L, P, H, D], fp32, keys after RoPE at positions 0…P−1.

The model is frozen and prefix-attached (`lpc_ray.prefix.attach`). Every random draw comes from a CPU generator seeded
with the initializer's own seed.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from lpc_ray.errors import ConfigError, DataError


@dataclass(frozen=True)
class Initialized:
    """keys, values: fp32 [L, P, H, D]; `record` goes into the artifact's provenance."""

    keys: torch.Tensor
    values: torch.Tensor
    record: dict[str, Any] = field(default_factory=dict)


def initialize(
    name: str, model: PreTrainedModel, material: list[int], num_tokens: int, seed: int, chunk_tokens: int = 64
) -> Initialized:
    """The initializer called `name` for a prefix of `num_tokens` from the token ids `material`.

    Raises: DataError when the material is too short for it, ConfigError for an unknown name or an unfit RoPE.
    """
    match name:
        case "first_k":
            return first_k(model, material, num_tokens)
        case "sci":
            return sci(model, material, num_tokens, seed, chunk_tokens)
        case "strided_rope":
            return strided_rope(model, material, num_tokens)
        case "random_vectors":
            return random_vectors(model, material, num_tokens, seed)
    raise ConfigError(f"initializer: got {name!r}, wanted first_k, sci, strided_rope or random_vectors")


def first_k(model: PreTrainedModel, material: list[int], num_tokens: int) -> Initialized:
    """A forward over the first P tokens of the material. Source: Cartridges, arXiv 2506.06266, section 3.2."""
    _require(len(material) >= num_tokens, "first_k", len(material), f"at least P = {num_tokens}")
    keys, values = forward_cache(model, material[:num_tokens])
    return Initialized(keys, values, {"initializer": "first_k"})


def sci(model: PreTrainedModel, material: list[int], num_tokens: int, seed: int, chunk_tokens: int) -> Initialized:
    """Sampled contiguous chunks: one forward over the concatenation of ⌈P/c⌉ windows of c tokens.

    Starts are iid uniform on 0…N−c with replacement; a corpus shorter than c is repeated; the last window is cut so that
    the whole is P tokens. Source: Learned Structure in Cartridges, arXiv 2508.17032; METHODS section 6.
    """
    _require(len(material) >= 1, "sci", len(material), "at least 1")
    corpus = list(material)
    while len(corpus) < chunk_tokens:
        corpus = corpus + list(material)
    starts = sci_starts(len(corpus), num_tokens, seed, chunk_tokens)
    sequence = [token for start in starts for token in corpus[start : start + chunk_tokens]][:num_tokens]
    keys, values = forward_cache(model, sequence)
    record = {
        "initializer": "sci",
        "seed": seed,
        "chunk_tokens": chunk_tokens,
        "starts": starts,
        "last_chunk_tokens": num_tokens - chunk_tokens * (len(starts) - 1),
    }
    return Initialized(keys, values, record)


def sci_starts(corpus_tokens: int, num_tokens: int, seed: int, chunk_tokens: int) -> list[int]:
    """The window starts that `seed` stands for."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    count = -(-num_tokens // chunk_tokens)
    return torch.randint(0, corpus_tokens - chunk_tokens + 1, (count,), generator=generator).tolist()


def strided_rope(model: PreTrainedModel, material: list[int], num_tokens: int) -> Initialized:
    """P evenly spaced tokens of the whole document, their keys re-rotated to positions 0…P−1.

    One forward over all N tokens; indices ⌊linspace(0, N−1, P)⌋; values are copied, keys un-rotated at their old
    position and rotated to the new one in fp32 with the model's own inverse frequencies. METHODS section 6.
    Raises: ConfigError where that cannot be exact (frequencies that depend on the length, several RoPEs, other layouts).
    """
    _require(len(material) >= num_tokens, "strided_rope", len(material), f"at least P = {num_tokens}")
    keys, values = forward_cache(model, material)
    indices = torch.linspace(0, len(material) - 1, num_tokens, dtype=torch.float64).floor().long()
    kept, targets = indices.to(keys.device), torch.arange(num_tokens, device=keys.device)
    moved = rerotate(keys[:, kept], kept, targets, inverse_frequencies(model))
    _check_first_layer(model, [material[index] for index in indices.tolist()], moved[0])
    return Initialized(moved, values[:, kept], {"initializer": "strided_rope"})


def random_vectors(model: PreTrainedModel, material: list[int], num_tokens: int, seed: int) -> Initialized:
    """N(0, s²) with s the standard deviation of the material's own keys and values, per layer. METHODS section 6."""
    _require(len(material) >= 2, "random_vectors", len(material), "at least 2 (to match their deviation)")
    generator = torch.Generator(device="cpu").manual_seed(seed)
    drawn = []
    for tensor in forward_cache(model, material[: max(num_tokens, 2)]):
        layers, _, heads, head_dim = tensor.shape
        noise = torch.randn(layers, num_tokens, heads, head_dim, generator=generator)
        drawn.append(noise.to(tensor.device) * tensor.std(dim=(1, 2, 3), keepdim=True))
    return Initialized(drawn[0], drawn[1], {"initializer": "random_vectors", "seed": seed})


@torch.no_grad()
def forward_cache(model: PreTrainedModel, token_ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys after RoPE and values [L, T, H, D], fp32, of one forward over `token_ids` at positions 0…T−1.

    Raises: DataError when the sequence is longer than the model's context.
    """
    limit = model.config.get_text_config().max_position_embeddings
    _require(len(token_ids) <= limit, "forward", len(token_ids), f"at most the model's context of {limit}")
    ids = torch.tensor([token_ids], device=model.device)
    cache: Any = DynamicCache()
    model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
    keys = torch.stack([layer.keys[0].transpose(0, 1).float() for layer in cache.layers])
    values = torch.stack([layer.values[0].transpose(0, 1).float() for layer in cache.layers])
    return keys, values


def inverse_frequencies(model: PreTrainedModel) -> torch.Tensor:
    """The model's own RoPE inverse frequencies, fp32 [D/2]. Raises: ConfigError when there is no single fixed set."""
    rotary = getattr(model.base_model, "rotary_emb", None)
    frequencies = getattr(rotary, "inv_freq", None)
    rope_type = getattr(rotary, "rope_type", None)
    if frequencies is None or rope_type in ("dynamic", "longrope"):
        raise ConfigError(
            f"strided_rope: model {model.config.model_type} has RoPE {rope_type or 'of several kinds'}, wanted one fixed "
            "set of inverse frequencies"
        )
    return frequencies.float()


def rerotate(keys: torch.Tensor, old: torch.Tensor, new: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Turn keys [L, P, H, D] from positions `old` to `new` (both [P]) by the rotation of the difference, in fp32.

    Half-split layout: dimension i pairs with i + D_rot/2; dimensions beyond D_rot = 2 · len(frequencies) are left alone.
    """
    angles = (new - old).float()[:, None] * frequencies.to(keys.device)[None, :]
    cos, sin = angles.cos()[None, :, None, :], angles.sin()[None, :, None, :]
    half = frequencies.numel()
    first, second, rest = keys.float().split([half, half, keys.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


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


def _require(condition: bool, where: str, got: int, wanted: str) -> None:
    if not condition:
        raise DataError(f"{where}: got material of {got} tokens, wanted {wanted}")
