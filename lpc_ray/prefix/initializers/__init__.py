"""Where a prefix starts: a source → keys and values [L, P, H, D], fp32, keys after RoPE at positions 0…P−1.

Each initializer is a module that defines

    minimum_source(num_tokens) -> int    the fewest source tokens that a prefix of P tokens can be made of
    initialize(start) -> Initialized     refuses what it cannot do, with its rule

and, where it has them,

    Settings                             a strict model of `recipe.initializers.<name>`
    find(settings, encode) -> Extra      what it starts from besides the source, found and checked by the plan
    whole_source(source_tokens, settings) tokens of its longest forward, for one that reads the whole source

A plan reads all but `initialize`, so a module imports torch inside its functions. Every random draw comes from a CPU
generator seeded with the initializer's own seed.
"""

from types import ModuleType

from lpc_ray.config.plugins import load_plugin, plugin_names


def initializer_names() -> list[str]:
    """Every module of this package that defines `initialize`."""
    return plugin_names(__name__, "initialize")


def load_initializer(name: str, where: str = "initializer") -> ModuleType:
    """The module of initializer `name`. Raises: ConfigError naming `where` for an unknown one."""
    return load_plugin(__name__, "initialize", name, where, "minimum_source")
