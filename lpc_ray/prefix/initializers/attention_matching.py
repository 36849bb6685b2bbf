"""Attention Matching: the training-free rival, and a start for training."""

from typing import Annotated

from pydantic import Field

from lpc_ray.config.loading import Strict
from lpc_ray.config.recipe import MOST
from lpc_ray.prefix.initializers.base import Initialized, Start, require
from lpc_ray.prefix.initializers.sci import sample_chunks


class Settings(Strict):
    """`query_tokens` tokens of the source, in sampled chunks, ask; `ridge` pulls solved values towards the tokens' own."""

    query_tokens: Annotated[int, Field(ge=1, le=MOST)] = 256
    query_chunk_tokens: Annotated[int, Field(ge=1, le=MOST)] = 64
    ridge: Annotated[float, Field(gt=0, le=1e6)] = 1e-3


def minimum_source(num_tokens: int) -> int:
    return num_tokens


def whole_source(source_tokens: int, settings: Settings) -> int:
    """Tokens of the longest forward: the queries behind the whole source."""
    return source_tokens + settings.query_tokens


def initialize(start: Start) -> Initialized:
    """P of the source's N keys per KV head, with values solved so that attention gives what the whole cache gives.

    1. A forward over the source gives its keys and values.
    2. Queries: a forward over chunks of the source sampled by the seed, at positions N…, that sees all of the cache.
    3. Keys: per head the first token, and the P−1 others that get most attention over all queries of its group.
    4. Values: least squares per head in fp32 over the same queries; see `matching.match_values`.
    5. Keys are turned by −(N − P) positions: the prompt starts at P, so every key keeps its distance to it.

    At P = N this is the source's cache itself. Source: Attention Matching, arXiv 2602.16284, without its per-key
    attention bias, which a plain prefix has no place for: the share of attention that goes to the prefix as a whole is
    therefore not matched.
    Raises: DataError for a source shorter than P, or too long for the model's context with the queries behind it;
    ConfigError for a model without one RoPE.
    """
    import torch

    from lpc_ray.prefix.attention import context_of, forward_cache
    from lpc_ray.prefix.matching import match_layer, queries_behind
    from lpc_ray.prefix.rope import inverse_frequencies, rerotate

    model, num_tokens, total = start.model, start.num_tokens, len(start.source_ids)
    settings = start.settings or Settings()
    require(total >= num_tokens, "attention_matching", total, f"at least P = {num_tokens}")
    room = context_of(model) - settings.query_tokens
    require(
        total <= room, "attention_matching", total, f"at most {room}: the context less {settings.query_tokens} queries"
    )
    frequencies = inverse_frequencies(model, "attention_matching")
    keys, values = forward_cache(model, start.source_ids)
    asking, starts = sample_chunks(start.source_ids, settings.query_tokens, start.seed, settings.query_chunk_tokens)
    seen = queries_behind(model, keys, values, asking)
    layers = [
        match_layer(keys[layer].transpose(0, 1), values[layer].transpose(0, 1), seen[layer], num_tokens, settings.ridge)
        for layer in range(keys.shape[0])
    ]
    kept_keys, kept_values = (torch.stack(part).transpose(1, 2) for part in zip(*layers, strict=True))
    turn = torch.full((num_tokens,), num_tokens - total, device=keys.device)
    record = {"initializer": "attention_matching", "seed": start.seed, "query_starts": starts, **settings.model_dump()}
    return Initialized(rerotate(kept_keys, turn, frequencies), kept_values, record)
