"""Verification: greedy answers of the served model, judged by rules fixed beforehand. One verifier kind per file."""

import importlib
from pathlib import Path

from pydantic import ValidationError

from lpc_ray.errors import ConfigError
from lpc_ray.recipe import VerificationRecipe
from lpc_ray.verification.base import Benchmark


def build_benchmark(recipe: VerificationRecipe) -> Benchmark:
    """The cases and the scorer that a recipe names.

    Raises: ConfigError for a setting that the kind does not have, DataError for cases that cannot be read.
    """
    kind = importlib.import_module(f"{__name__}.{recipe.kind}")
    try:
        settings = kind.Settings(**recipe.settings)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(["recipe.verification.settings", *(str(part) for part in problem["loc"])])
        wanted = f", wanted {', '.join(kind.Settings.model_fields) or 'none'}"
        known = wanted if problem["type"] == "extra_forbidden" else ""
        raise ConfigError(f"{where}: {problem['msg']} for kind {recipe.kind}{known}") from error
    return kind.load(Path(recipe.cases), settings)
