"""Verification: greedy answers of the served model, judged by rules fixed beforehand. One verifier kind per file."""

import importlib
from pathlib import Path

from lpc_ray.config.loading import validated
from lpc_ray.config.recipe import VerificationRecipe
from lpc_ray.errors import ConfigError
from lpc_ray.verification.base import Benchmark


def build_benchmark(recipe: VerificationRecipe) -> Benchmark:
    """The cases and the scorer that a recipe names.

    Raises: ConfigError for a setting that the kind does not have, DataError for cases that cannot be read.
    """
    kind, where = importlib.import_module(f"{__name__}.{recipe.kind}"), "recipe.verification.settings"
    known = ", ".join(kind.Settings.model_fields) or "none"
    for name in recipe.settings:
        if name not in kind.Settings.model_fields:
            raise ConfigError(f"{where}: got {name!r}, wanted for kind {recipe.kind}: {known}")
    settings = validated(kind.Settings, recipe.settings, where)
    return kind.load(Path(recipe.cases), settings)
