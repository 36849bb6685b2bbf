import torch
from transformers import PreTrainedModel

from lpc_ray.prefix.attention import forward_cache
from lpc_ray.prefix.initializers.base import Initialized


def random_tokens(model: PreTrainedModel, num_tokens: int, seed: int) -> Initialized:
    """A forward over P ids drawn iid uniform from the model's vocabulary. Source: Cartridges, arXiv 2506.06266."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    vocabulary = model.config.get_text_config().vocab_size
    drawn = torch.randint(0, vocabulary, (num_tokens,), generator=generator).tolist()
    keys, values = forward_cache(model, drawn)
    return Initialized(keys, values, {"initializer": "random_tokens", "seed": seed})
