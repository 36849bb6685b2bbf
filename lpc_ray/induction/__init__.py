"""Prefix Induction: raw material → traces. One family per file, its wording in `prompts/<family>.md`.

`base.py` holds the protocol and the runner, `study.py` what the families that ask a teacher about a chunk share.
"""

import difflib
import importlib
import pkgutil
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lpc_ray.errors import ConfigError
from lpc_ray.induction.base import Family

_NOT_FAMILIES = {"base", "study"}


def family_names() -> list[str]:
    """Every module of this package but `base` and `study` is a family."""
    modules = {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])}
    return sorted(modules - _NOT_FAMILIES)


def build_family(name: str, settings: dict[str, Any]) -> Family:
    """The family in module `name`, with its settings checked.

    Raises: ConfigError for an unknown family (it names the nearest) or a setting the family does not have.
    """
    names = family_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.3)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"recipe.induction.families: got {name!r}, wanted one of {', '.join(names)}{hint}")
    kind = importlib.import_module(f"{__name__}.{name}").FAMILY
    try:
        return kind(**settings)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            raise ConfigError(
                f"recipe.induction.families.{name}: unknown setting {where!r}, wanted {', '.join(kind.model_fields)}"
            ) from error
        raise ConfigError(f"recipe.induction.families.{name}.{where}: {problem['msg']}") from error
