"""Prefix Induction: raw material → traces. One family per file, its wording in `prompts/<family>.md`.

`base.py` holds the protocol and the runner, `study.py` what the families that ask a teacher about a chunk share.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import Any

from lpc_ray.config.loading import nearest, validated
from lpc_ray.errors import ConfigError
from lpc_ray.induction.base import Family

_NOT_FAMILIES = {"base", "study"}


def family_names() -> list[str]:
    """Every module of this package but `base` and `study` is a family."""
    modules = {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])}
    return sorted(modules - _NOT_FAMILIES)


def build_family(name: str, settings: dict[str, Any]) -> Family:
    """The family in module `name`, with its settings checked.

    Raises: ConfigError for an unknown family, or a setting that the family does not have or take.
    """
    names = family_names()
    if name not in names:
        raise ConfigError(
            f"recipe.induction.families: got {name!r}, wanted one of {', '.join(names)}{nearest(name, set(names))}"
        )
    kind = importlib.import_module(f"{__name__}.{name}").FAMILY
    return validated(kind, settings, f"recipe.induction.families.{name}")
