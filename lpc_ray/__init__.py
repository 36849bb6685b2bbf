"""Learned Prefix Caches: from raw material to small trained K/V prefixes, verified and served. The rooms, in reading order:

    config        what a user writes: the recipe (hashed) and where it runs; loads no torch
    model         the frozen model without running it: files, identity, tokenizer, chat template, architecture
    sources       raw material → documents → chunks
    induction     one file per family: what a teacher is asked about a chunk, and the traces that come of it
    traces        traces → tokens, stored, their quality measured
    artifacts     the LPC on disk: manifest, store, handles, other formats
    prefix        the trained thing: how it enters attention, and one file per initializer
    training      one file per objective; packing; the learner, the stepper and the loop
    verification  what scores an answerer, one file per kind; the sandbox; damage off the source; the gate
    run           one run: what it will do, where its files lie, what they show
    suite         many tasks: strata, promotion, one job each
    report        rows → tables, words and pages
    serving       the server's pure half: names, keys, residency, rewriting
    cli           what every job does first, and the command `lpc`
    adapters      all that knows Ray, vLLM, DeepSpeed or MLflow: stages, actors, engine, trainer, server

Below them: `errors`, `records` (the nouns that rooms pass each other), `plain_json`, `asking` (drives generators), `storage`,
`terminal`, `home` (where caches lie).
Imports go down the floors that pyproject.toml lists; `make check` holds them there.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpc_ray.artifacts.library import load
    from lpc_ray.artifacts.store import publish
    from lpc_ray.prefix.attention import Prefix, attach

__all__ = ["Prefix", "attach", "load", "publish"]

_HOMES = {
    "Prefix": "lpc_ray.prefix.attention",
    "attach": "lpc_ray.prefix.attention",
    "load": "lpc_ray.artifacts.library",
    "publish": "lpc_ray.artifacts.store",
}


def __getattr__(name: str) -> Any:
    """Import an exported name when it is first used: `import lpc_ray` loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lpc_ray' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
