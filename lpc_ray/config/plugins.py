"""A module is its name: what a folder of plug-ins offers, found without importing any of them.

A plug-in is a module that defines the one name its folder asks for (`FAMILY`, `initialize`, `loss`, …). To add one is to
add its file; no list names it.
"""

import importlib
import re
from pathlib import Path
from types import ModuleType

from lpc_ray.config.loading import nearest
from lpc_ray.errors import ConfigError


def plugin_names(package: str, defines: str) -> list[str]:
    """The modules and packages in `package` that define `defines` at their top level, sorted. Reads their text only."""
    own = importlib.import_module(package).__path__[0]
    defined = re.compile(rf"^(?:(?:def|class) {defines}\b|{defines}\s*[:=])", re.MULTILINE)
    files = [(file.stem, file) for file in Path(own).glob("*.py") if file.stem != "__init__"]
    files += [(file.parent.name, file) for file in Path(own).glob("*/__init__.py")]
    return sorted(name for name, file in files if defined.search(file.read_text(encoding="utf-8")))


def check_plugin(package: str, defines: str, name: str, where: str) -> None:
    """Raises: ConfigError naming `where`, unless `name` is a plug-in of `package`."""
    names = plugin_names(package, defines)
    if name not in names:
        raise ConfigError(f"{where}: got {name!r}, wanted one of {', '.join(names)}{nearest(name, set(names))}")


def load_plugin(package: str, defines: str, name: str, where: str) -> ModuleType:
    """The module `name` of `package`, imported. Raises: ConfigError naming `where` when it is no plug-in."""
    check_plugin(package, defines, name, where)
    return importlib.import_module(f"{package}.{name}")
