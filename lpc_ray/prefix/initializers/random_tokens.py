from lpc_ray.prefix.initializers.base import Initialized, Start


def minimum_source(num_tokens: int) -> int:
    return 0


def initialize(start: Start) -> Initialized:
    """A forward over P ids drawn iid uniform from the model's vocabulary.

    Source: Cartridges, arXiv 2506.06266, which compares starts of random tokens; the uniform draw is this project's own.
    """
    import torch

    from lpc_ray.prefix.attention import forward_cache

    generator = torch.Generator(device="cpu").manual_seed(start.seed)
    vocabulary = start.model.config.get_text_config().vocab_size
    drawn = torch.randint(0, vocabulary, (start.num_tokens,), generator=generator).tolist()
    keys, values = forward_cache(start.model, drawn)
    return Initialized(keys, values, {"initializer": "random_tokens", "seed": start.seed})
