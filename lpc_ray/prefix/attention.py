"""The trainable prefix, and how attention sees it.

Shape letters: L layers, P prefix tokens, H KV heads, D head dim, B rows, T tokens, G query heads per KV head,
A prefixes (arms) in one batch.

The prefix enters through an attention function registered with transformers and travels as keyword arguments of the
model's forward, so that packing, gradient checkpointing and any supported architecture work without a cache object.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import DynamicCache

from lpc_ray.errors import ConfigError, DataError
from lpc_ray.model.architecture import check_architecture
from lpc_ray.prefix.merged import prefix_and_prompt

ATTENTION = "lpc_prefix"


class Prefix(nn.Module):
    """Keys after RoPE and values, [L, P, H, D]; the first `frozen_tokens` positions are buffers, the rest fp32 weights."""

    frozen_keys: torch.Tensor
    frozen_values: torch.Tensor

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, frozen_tokens: int):
        super().__init__()
        keys, values = keys.detach().float(), values.detach().float()
        self.register_buffer("frozen_keys", keys[:, :frozen_tokens].clone())
        self.register_buffer("frozen_values", values[:, :frozen_tokens].clone())
        self.keys = nn.Parameter(keys[:, frozen_tokens:].clone())
        self.values = nn.Parameter(values[:, frozen_tokens:].clone())
        self.num_tokens = keys.shape[1]
        self.frozen_tokens = frozen_tokens

    def full(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [L, P, H, D], frozen positions first; differentiable in the trainable ones."""
        return (
            torch.cat([self.frozen_keys, self.keys], dim=1),
            torch.cat([self.frozen_values, self.values], dim=1),
        )


@dataclass(frozen=True)
class SeenQueries:
    """One layer's queries after RoPE, [B, H·G, T, D], and how it turns their products with keys into scores."""

    queries: torch.Tensor
    scale: float
    softcap: float | None


def attach(model: PreTrainedModel) -> PreTrainedModel:
    """Freeze `model` and let its attention see prefixes. Mutates and returns the model.

    Six tokens prove it: behind the cache of the first three, the others get the logits that the model's eager attention gives
    them without a prefix, in the model's dtype, so that what differs is the prefix and not the arithmetic.
    Raises: ConfigError for an architecture that a prefix cannot enter exactly; see `architecture`.
    """
    check_architecture(model.config.get_text_config())
    model.eval()
    ids = torch.arange(5, 11, device=model.device)[None] % model.config.get_text_config().vocab_size
    if not (model._supports_attention_backend and model._can_set_attn_implementation()):
        raise ConfigError(
            f"model {model.config.model_type}: its attention cannot be exchanged, so no prefix can enter it"
        )
    model.set_attn_implementation("eager")
    with torch.no_grad():
        wanted = model(input_ids=ids, use_cache=False).logits[0, 3:]
    model.set_attn_implementation(ATTENTION)
    model.requires_grad_(False)
    _check_enters(model, ids, wanted)
    return model


@torch.no_grad()
def _check_enters(model: PreTrainedModel, ids: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raises: ConfigError unless a prefix of the first three tokens gives the other three the `wanted` logits."""
    keys, values = forward_cache(model, ids[0, :3].tolist())
    got = model(
        input_ids=ids[:, 3:],
        position_ids=torch.arange(3, 6, device=ids.device)[None],
        use_cache=False,
        **prefix_arguments(keys, values, torch.zeros_like(ids[:, 3:])),
    ).logits[0]
    error, largest = (got - wanted).abs().max().item(), wanted.abs().max().item()
    if not error <= rounding(model) * largest:
        raise ConfigError(
            f"model {model.config.model_type}: behind a prefix of three tokens, logits are {error:.2e} away from those behind "
            f"the tokens themselves, wanted at most {rounding(model) * largest:.2e}; no prefix enters its attention exactly"
        )


@torch.no_grad()
def forward_cache(
    model: PreTrainedModel, token_ids: list[int], first_position: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys after RoPE and values [L, T, H, D], fp32, of one forward over `token_ids` at positions `first_position`…

    Raises: DataError when the sequence is longer than the model's context, ConfigError for a model that keeps no cache of
    every layer.
    """
    limit = context_of(model)
    if len(token_ids) > limit:
        raise DataError(
            f"forward: got a source of {len(token_ids)} tokens, wanted at most the model's context of {limit}"
        )
    ids = torch.tensor([token_ids], device=model.device)
    positions = torch.arange(first_position, first_position + len(token_ids), device=model.device)[None]
    cache: Any = DynamicCache()
    model.base_model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True)
    if len(cache.layers) != model.config.get_text_config().num_hidden_layers:
        raise ConfigError(
            f"model {model.config.model_type}: got keys and values of {len(cache.layers)} layers, wanted "
            f"{model.config.get_text_config().num_hidden_layers}"
        )
    keys = torch.stack([layer.keys[0].transpose(0, 1).float() for layer in cache.layers])
    values = torch.stack([layer.values[0].transpose(0, 1).float() for layer in cache.layers])
    return keys, values


def context_of(model: PreTrainedModel) -> int:
    """The model's context in tokens."""
    return model.config.get_text_config().max_position_embeddings


def rounding(model: PreTrainedModel) -> float:
    """By which share of the largest number two ways to compute one thing may differ in the model's dtype."""
    return 1e-3 if model.dtype == torch.float32 else 0.05


class SeenPrefix:
    """What one forward sees of its prefixes, made once for all layers.

    layers: per layer the keys and values [A, H, P, D], fp32. Padding sees the prefix and itself, and nobody sees padding.
    """

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, segments: torch.Tensor, prefix_of_row: torch.Tensor | None
    ):
        self.num_tokens = keys.shape[2]
        # One unbind: the gradient of a slice per layer would be as large as the prefix, once per layer.
        by_layer = (tensor.transpose(2, 3).unbind(1) for tensor in (keys, values))
        self.layers = list(zip(*by_layer, strict=True))
        self._prefix_of_row = prefix_of_row
        self._is_seen = prompt_mask(segments)
        self._bias: torch.Tensor | None = None

    def rows(self, layer: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """This layer's keys and values, two [B, H, P, D] in the dtype of `like`, whose first dimension is B."""
        keys, values = (tensor.to(like.dtype) for tensor in self.layers[layer])
        if self._prefix_of_row is None:
            return keys.expand(like.shape[0], -1, -1, -1), values.expand(like.shape[0], -1, -1, -1)
        return keys[self._prefix_of_row], values[self._prefix_of_row]

    def bias(self, dtype: torch.dtype) -> torch.Tensor:
        """0 where a prompt token sees another, else the least number of `dtype`, [B, 1, T, T]."""
        if self._bias is None or self._bias.dtype != dtype:
            self._bias = _bias(self._is_seen, dtype)
        return self._bias


def prompt_mask(segments: torch.Tensor) -> torch.Tensor:
    """Who sees whom in the prompt: every token itself and the earlier ones of its own sample.

    segments: int [B, T], the sample a token belongs to, −1 for padding (which sees itself, so that no row is empty).
    Returns: bool [B, 1, T, T].
    """
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    return ((segments[:, :, None] == segments[:, None, :]) & causal)[:, None]


def _bias(is_seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(is_seen.shape, dtype=dtype, device=is_seen.device).masked_fill_(~is_seen, torch.finfo(dtype).min)


def prefix_arguments(
    keys: torch.Tensor, values: torch.Tensor, segments: torch.Tensor, prefix_of_row: torch.Tensor | None = None
) -> dict[str, Any]:
    """Keyword arguments for a forward of an attached model.

    keys, values: [L, P, H, D], or [A, L, P, H, D] with prefix_of_row int [B] choosing one prefix per row.
    segments: int [B, T]; see `prompt_mask`. Pass `position_ids` that start at P and `use_cache=False` as well.
    """
    if keys.ndim == 4:
        keys, values = keys[None], values[None]
    elif prefix_of_row is None:
        prefix_of_row = torch.zeros(segments.shape[0], dtype=torch.long, device=segments.device)
    return {"lpc_prefix": SeenPrefix(keys, values, segments, prefix_of_row)}


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    lpc_prefix: SeenPrefix | None = None,
    lpc_seen: dict[int, SeenQueries] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query [B, H·G, T, D]; key, value [B, H, T, D] → [B, T, H·G, D]. Without a prefix: plain causal attention.

    lpc_seen: where given, this layer's queries are left in it.
    """
    model, layer = module.config.model_type, module.layer_idx
    if s_aux is not None:
        raise ConfigError(f"model {model}: learned attention sinks have no place beside a prefix")
    batch, query_heads, length, head_dim = query.shape
    heads = key.shape[1]
    if lpc_prefix is None:
        assert key.shape[2] == length, "no cache object may feed this attention"
        before = key[:, :, :0], value[:, :, :0]
        bias = _bias(prompt_mask(torch.zeros(1, length, dtype=torch.long, device=query.device)), query.dtype)
    else:
        got = lpc_prefix.layers[layer][0].shape
        if (got[1], got[3]) != (heads, key.shape[3]):
            raise ConfigError(
                f"model {model}, layer {layer}: got a prefix of {got[1]} KV heads × {got[3]}, wanted {heads} × {key.shape[3]}"
            )
        before, bias = lpc_prefix.rows(layer, key), lpc_prefix.bias(query.dtype)
    seen = before[0].shape[2] + length
    if sliding_window is not None and seen > sliding_window:
        raise ConfigError(
            f"model {model}, layer {layer}: prefix and prompt are {seen} tokens, wanted at most the sliding window of "
            f"{sliding_window}"
        )
    scale = scaling if scaling is not None else 1 / math.sqrt(head_dim)
    if lpc_seen is not None:
        lpc_seen[layer] = SeenQueries(query, scale, softcap)
    # Grouped query heads are folded into the query length: one matrix product per KV head, no repeated keys.
    folded = query.reshape(batch, heads, -1, head_dim)
    output = prefix_and_prompt(folded, before, (key, value), bias, scale, softcap)
    output = output.reshape(batch, query_heads, length, value.shape[-1])
    return output.transpose(1, 2).contiguous(), None


def _no_mask(*_: Any, **__: Any) -> None:
    """The mask is built once per batch by `prefix_mask`, not by transformers."""
    return None


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, _no_mask)
