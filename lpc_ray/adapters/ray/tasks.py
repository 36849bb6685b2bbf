"""One-off Ray tasks that hold the backbone for a moment: an untrained prefix, and the drift of a trained one.

The driver imports this module to send the tasks, so what is heavy is imported where they run.
"""

import torch

from lpc_ray.adapters.ray.group import GroupSetup
from lpc_ray.artifacts.store import load_prefix, publish
from lpc_ray.model.chat import ChatRenderer, PromptFormat
from lpc_ray.model.embedded import prefix_cache
from lpc_ray.model.identity import model_identity
from lpc_ray.records import Message


def publish_untrained(setup: GroupSetup, initializer: str, num_tokens: int) -> str:
    """A training-free prefix: what `initializer` gives with seed 0, published as it is. Returns its digest."""
    from lpc_ray.adapters.ray.training import load_backbone

    torch.set_num_threads(setup.resources.threads)
    recipe = setup.recipe
    identity = model_identity(setup.model, recipe.model.revision)
    backbone = load_backbone(setup.model, recipe.model.revision, recipe.model.dtype)
    start = setup.starts.initialize(initializer, backbone, identity, num_tokens, 0, recipe.prefix, prefix_cache())
    manifest = publish(
        setup.run.artifacts,
        start.keys,
        start.values,
        identity,
        recipe.prefix.frozen_tokens,
        **setup.origin.untrained(start.record),
    )
    return manifest.digest


def measure_drift(setup: GroupSetup, folder: str, texts: list[tuple[list[Message], str]]) -> tuple[float, int]:
    """KL drift of the LPC in `folder` on conversations and the bare model's replies to them (re-tokenised)."""
    from lpc_ray.adapters.ray.training import load_backbone
    from lpc_ray.verification.drift import kl_drift, text_row

    torch.set_num_threads(setup.resources.threads)
    model = setup.recipe.model
    _, keys, values = load_prefix(folder, model_identity(setup.model, model.revision))
    chat = ChatRenderer(setup.model, model.revision, PromptFormat(**dict(setup.recipe.prompt)))
    rows = [text_row(chat(messages, True), chat.encode_reply(reply)) for messages, reply in texts]
    return kl_drift(load_backbone(setup.model, model.revision, model.dtype), keys, values, rows)
