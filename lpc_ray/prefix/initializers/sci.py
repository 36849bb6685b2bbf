from lpc_ray.prefix.initializers.base import Initialized, Start, require


def minimum_source(num_tokens: int) -> int:
    return 1


def initialize(start: Start) -> Initialized:
    """Sampled contiguous chunks: one forward over the concatenation of ⌈P/c⌉ windows of c = `sci_chunk_tokens` tokens.

    Starts are iid uniform on 0…N−c with replacement; a source shorter than c is repeated; the last window is cut so that
    the whole is P tokens. Source: Learned Structure in Cartridges, arXiv 2508.17032; where it leaves the draw open (with
    replacement, unsorted, no separators), the choice is this project's own. Raises: DataError for an empty source.
    """
    from lpc_ray.prefix.attention import forward_cache

    chunk_tokens = start.prefix.sci_chunk_tokens
    sequence, starts = sample_chunks(start.source_ids, start.num_tokens, start.seed, chunk_tokens)
    keys, values = forward_cache(start.model, sequence)
    record = {
        "initializer": "sci",
        "seed": start.seed,
        "chunk_tokens": chunk_tokens,
        "starts": starts,
        "last_chunk_tokens": start.num_tokens - chunk_tokens * (len(starts) - 1),
    }
    return Initialized(keys, values, record)


def sample_chunks(source_ids: list[int], num_tokens: int, seed: int, chunk_tokens: int) -> tuple[list[int], list[int]]:
    """The synthetic sequence of P token ids that `seed` stands for, and the starts of its windows."""
    import torch

    require(len(source_ids) >= 1, "sci", len(source_ids), "at least 1")
    repeated = list(source_ids)
    while len(repeated) < chunk_tokens:
        repeated = repeated + list(source_ids)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    count = -(-num_tokens // chunk_tokens)
    starts = torch.randint(0, len(repeated) - chunk_tokens + 1, (count,), generator=generator).tolist()
    return [token for start in starts for token in repeated[start : start + chunk_tokens]][:num_tokens], starts
