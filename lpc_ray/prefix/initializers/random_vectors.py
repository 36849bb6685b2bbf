from lpc_ray.prefix.initializers.base import Initialized, Start, require


def minimum_source(num_tokens: int) -> int:
    return 2


def initialize(start: Start) -> Initialized:
    """N(0, s²) with s the standard deviation of the source's own keys and values, per layer.

    Source: Cartridges, arXiv 2506.06266, which compares starts of random vectors; the matched deviation is this project's own.
    Raises: DataError for a source of fewer than 2 tokens.
    """
    import torch

    from lpc_ray.prefix.attention import forward_cache

    ids, num_tokens = start.source_ids, start.num_tokens
    require(len(ids) >= 2, "random_vectors", len(ids), "at least 2 (to match their deviation)")
    generator = torch.Generator(device="cpu").manual_seed(start.seed)
    drawn = []
    for tensor in forward_cache(start.model, ids[: max(num_tokens, 2)]):
        layers, _, heads, head_dim = tensor.shape
        noise = torch.randn(layers, num_tokens, heads, head_dim, generator=generator)
        drawn.append(noise.to(tensor.device) * tensor.std(dim=(1, 2, 3), keepdim=True))
    return Initialized(drawn[0], drawn[1], {"initializer": "random_vectors", "seed": start.seed})
