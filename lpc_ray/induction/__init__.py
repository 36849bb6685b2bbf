"""Prefix Induction: a source → traces. One family per file, its wording in `prompts/<family>.md`.

`base.py` holds the protocol and the runner, `study.py` what the families that ask a teacher about a chunk share.
"""

from typing import Any

from lpc_ray.config.loading import validated
from lpc_ray.config.plugins import load_plugin, plugin_names
from lpc_ray.induction.base import Family


def family_names() -> list[str]:
    """Every module of this package that defines `FAMILY`."""
    return plugin_names(__name__, "FAMILY")


def build_family(name: str, settings: dict[str, Any]) -> Family:
    """The family in module `name`, with its settings checked.

    Raises: ConfigError for an unknown family, or a setting that the family does not have or take.
    """
    kind = load_plugin(__name__, "FAMILY", name, "recipe.induction.families").FAMILY
    return validated(kind, settings, f"recipe.induction.families.{name}")
