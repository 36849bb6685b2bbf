from lpc_ray.prefix.initializers.base import Initialized, Start, require


def minimum_source(num_tokens: int) -> int:
    return num_tokens


def initialize(start: Start) -> Initialized:
    """A forward over the first P tokens of the source. Source: Cartridges, arXiv 2506.06266, section 3.2.

    Raises: DataError for a source shorter than P.
    """
    from lpc_ray.prefix.attention import forward_cache

    ids, num_tokens = start.source_ids, start.num_tokens
    require(len(ids) >= num_tokens, "first_k", len(ids), f"at least P = {num_tokens}")
    keys, values = forward_cache(start.model, ids[:num_tokens])
    return Initialized(keys, values, {"initializer": "first_k"})
