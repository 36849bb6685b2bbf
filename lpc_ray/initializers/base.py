"""What initializers share: the result, and one forward that yields a cache."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from lpc_ray.errors import DataError


@dataclass(frozen=True)
class Initialized:
    """keys, values: fp32 [L, P, H, D]; `record` goes into the artifact's provenance."""

    keys: torch.Tensor
    values: torch.Tensor
    record: dict[str, Any] = field(default_factory=dict)


@torch.no_grad()
def forward_cache(model: PreTrainedModel, token_ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys after RoPE and values [L, T, H, D], fp32, of one forward over `token_ids` at positions 0…T−1.

    Raises: DataError when the sequence is longer than the model's context.
    """
    limit = context_of(model)
    require(len(token_ids) <= limit, "forward", len(token_ids), f"at most the model's context of {limit}")
    ids = torch.tensor([token_ids], device=model.device)
    cache: Any = DynamicCache()
    model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
    keys = torch.stack([layer.keys[0].transpose(0, 1).float() for layer in cache.layers])
    values = torch.stack([layer.values[0].transpose(0, 1).float() for layer in cache.layers])
    return keys, values


def context_of(model: PreTrainedModel) -> int:
    """The model's context in tokens."""
    return model.config.get_text_config().max_position_embeddings


def require(condition: bool, where: str, got: int, wanted: str) -> None:
    """Raises: DataError naming the initializer, the tokens it got and its rule, unless `condition`."""
    if not condition:
        raise DataError(f"{where}: got material of {got} tokens, wanted {wanted}")
