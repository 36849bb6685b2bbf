from lpc_ray.prefix.initializers.base import Initialized, Start, require


def minimum_source(num_tokens: int) -> int:
    return num_tokens


def whole_source(source_tokens: int, settings: None) -> int:
    """Tokens of the one forward, over the whole source."""
    return source_tokens


def initialize(start: Start) -> Initialized:
    """P evenly spaced tokens of the whole source, their keys re-rotated to positions 0…P−1.

    One forward over all N tokens; indices ⌊linspace(0, N−1, P)⌋; values are copied, keys un-rotated at their old
    position and rotated to the new one in fp32 with the model's own inverse frequencies. This project's own; it follows
    from RoPE's dependence on distances alone, RoFormer, arXiv 2104.09864, section 3.
    Raises: DataError for a source shorter than P; ConfigError where it cannot be exact (several RoPEs, other layouts).
    """
    import torch

    from lpc_ray.prefix.attention import forward_cache
    from lpc_ray.prefix.rope import inverse_frequencies, rerotate

    ids, num_tokens = start.source_ids, start.num_tokens
    require(len(ids) >= num_tokens, "strided_rope", len(ids), f"at least P = {num_tokens}")
    frequencies = inverse_frequencies(start.model, "strided_rope")
    keys, values = forward_cache(start.model, ids)
    indices = torch.linspace(0, len(ids) - 1, num_tokens, dtype=torch.float64).floor().long()
    kept, targets = indices.to(keys.device), torch.arange(num_tokens, device=keys.device)
    moved = rerotate(keys[:, kept], targets - kept, frequencies)
    return Initialized(moved, values[:, kept], {"initializer": "strided_rope"})
