"""Verification: greedy answers of the served model, judged by rules fixed beforehand. One verifier kind per file.

A kind is a module that defines `Settings` and `load(path, settings)`.
"""

from lpc_ray.config.loading import validated
from lpc_ray.config.plugins import load_plugin
from lpc_ray.config.recipe import VerificationRecipe
from lpc_ray.errors import ConfigError
from lpc_ray.sources.text import expanded
from lpc_ray.verification.base import Benchmark


def build_benchmark(recipe: VerificationRecipe) -> Benchmark:
    """The cases and the scorer that a recipe names.

    Raises: ConfigError for an unknown kind or a setting that it does not have, DataError for cases that cannot be read.
    """
    kind, where = (
        load_plugin(__name__, "Settings", recipe.kind, "recipe.verification.kind", "load"),
        "recipe.verification.settings",
    )
    known = ", ".join(kind.Settings.model_fields) or "none"
    for name in recipe.settings:
        if name not in kind.Settings.model_fields:
            raise ConfigError(f"{where}: got {name!r}, wanted for kind {recipe.kind}: {known}")
    settings = validated(kind.Settings, recipe.settings, where)
    return kind.load(expanded(recipe.cases), settings)
