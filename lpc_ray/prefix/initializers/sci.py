import torch
from transformers import PreTrainedModel

from lpc_ray.prefix.attention import forward_cache
from lpc_ray.prefix.initializers.base import Initialized, require


def sci(model: PreTrainedModel, material: list[int], num_tokens: int, seed: int, chunk_tokens: int) -> Initialized:
    """Sampled contiguous chunks: one forward over the concatenation of ⌈P/c⌉ windows of c tokens.

    Starts are iid uniform on 0…N−c with replacement; a corpus shorter than c is repeated; the last window is cut so that
    the whole is P tokens. Source: Learned Structure in Cartridges, arXiv 2508.17032; METHODS section 6.
    Raises: DataError for empty material.
    """
    sequence, starts = sample_chunks(material, num_tokens, seed, chunk_tokens)
    keys, values = forward_cache(model, sequence)
    record = {
        "initializer": "sci",
        "seed": seed,
        "chunk_tokens": chunk_tokens,
        "starts": starts,
        "last_chunk_tokens": num_tokens - chunk_tokens * (len(starts) - 1),
    }
    return Initialized(keys, values, record)


def sample_chunks(material: list[int], num_tokens: int, seed: int, chunk_tokens: int) -> tuple[list[int], list[int]]:
    """The synthetic sequence of P token ids that `seed` stands for, and the starts of its windows."""
    require(len(material) >= 1, "sci", len(material), "at least 1")
    corpus = list(material)
    while len(corpus) < chunk_tokens:
        corpus = corpus + list(material)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    count = -(-num_tokens // chunk_tokens)
    starts = torch.randint(0, len(corpus) - chunk_tokens + 1, (count,), generator=generator).tolist()
    return [token for start in starts for token in corpus[start : start + chunk_tokens]][:num_tokens], starts
