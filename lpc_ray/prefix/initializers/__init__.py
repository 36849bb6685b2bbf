"""Where a prefix starts: material → keys and values [L, P, H, D], fp32, keys after RoPE at positions 0…P−1.

The model is frozen and prefix-attached (`lpc_ray.prefix.attention.attach`). Every random draw comes from a CPU generator seeded
with the initializer's own seed. Each initializer is a file; each refuses what it cannot do, with its rule.
"""

from pathlib import Path

from transformers import PreTrainedModel

from lpc_ray.artifacts.handles import ARTIFACTS
from lpc_ray.artifacts.store import fetch
from lpc_ray.config.recipe import InitializerName, Recipe
from lpc_ray.model.identity import ModelIdentity
from lpc_ray.prefix.initializers.attention_matching import attention_matching
from lpc_ray.prefix.initializers.base import Initialized
from lpc_ray.prefix.initializers.first_k import first_k
from lpc_ray.prefix.initializers.pretrained import pretrained
from lpc_ray.prefix.initializers.random_tokens import random_tokens
from lpc_ray.prefix.initializers.random_vectors import random_vectors
from lpc_ray.prefix.initializers.sci import sci
from lpc_ray.prefix.initializers.strided_rope import strided_rope
from lpc_ray.prefix.initializers.text import text
from lpc_ray.prefix.starts import Starts

__all__ = [
    "Initialized",
    "attention_matching",
    "first_k",
    "initialize",
    "pretrained",
    "random_tokens",
    "random_vectors",
    "sci",
    "strided_rope",
    "text",
]


def initialize(
    name: InitializerName,
    model: PreTrainedModel,
    identity: ModelIdentity,
    starts: Starts,
    num_tokens: int,
    seed: int,
    recipe: Recipe,
    cache: Path,
) -> Initialized:
    """The initializer called `name` for a prefix of `num_tokens`.

    starts: what there is to start from; cache: a local folder for an earlier LPC that lies in an object store.
    Raises: DataError when there is too little to start from, ConfigError for an unfit RoPE, ArtifactError for an earlier
    LPC of another model or length.
    """
    material = starts.material
    match name:
        case "first_k":
            return first_k(model, material, num_tokens)
        case "sci":
            return sci(model, material, num_tokens, seed, recipe.prefix.sci_chunk_tokens)
        case "strided_rope":
            return strided_rope(model, material, num_tokens)
        case "text":
            assert starts.text is not None, "read_starts reads what is in use"
            return text(model, starts.text.token_ids, num_tokens, starts.text.path)
        case "random_tokens":
            return random_tokens(model, num_tokens, seed)
        case "random_vectors":
            return random_vectors(model, material, num_tokens, seed)
        case "pretrained":
            assert starts.pretrained is not None, "read_starts finds what is in use"
            folder = fetch(starts.pretrained.store / ARTIFACTS, starts.pretrained.digest, cache)
            return pretrained(folder, identity, num_tokens)
        case "attention_matching":
            return attention_matching(model, material, num_tokens, seed, recipe.initializers.attention_matching)
