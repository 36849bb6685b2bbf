"""Plug-ins of a folder, named by their files and found without an import; one is imported when it is used.

A plug-in is a module that defines the one name its folder asks for (`FAMILY`, `initialize`, `loss`, …). To add one is to
add its file; no list names it.
"""

import importlib
import re
from pathlib import Path
from types import ModuleType

from lpc_ray.config.loading import nearest
from lpc_ray.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_]*")  # which also keeps `__init__` out, and names that a handle could not hold


def plugin_names(package: str, defines: str) -> list[str]:
    """The modules and packages in `package` that define `defines` at their top level, sorted. Reads their text only."""
    return sorted(_files(package, defines))


def _files(package: str, defines: str) -> dict[str, Path]:
    """Plug-in → the file that defines it."""
    own = Path(importlib.import_module(package).__path__[0])
    defined = re.compile(rf"^(?:(?:def|class) {defines}\b|{defines}\s*[:=])", re.MULTILINE)
    files = {file.stem: file for file in own.glob("*.py") if _NAME.fullmatch(file.stem)}
    files |= {file.parent.name: file for file in own.glob("*/__init__.py")}
    texts = {name: file.read_text(encoding="utf-8", errors="replace") for name, file in files.items()}
    return {name: files[name] for name, text in texts.items() if defined.search(text)}


def check_plugin(package: str, defines: str, name: str, where: str) -> None:
    """Raises: ConfigError naming `where`, unless `name` is a plug-in of `package` whose file Python can parse."""
    files = _files(package, defines)
    if name not in files:
        raise ConfigError(f"{where}: got {name!r}, wanted one of {', '.join(sorted(files))}{nearest(name, set(files))}")
    try:
        compile(files[name].read_bytes(), files[name].name, "exec")
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{where}: got {name!r}, whose module is no Python: {error}") from error


def load_plugin(package: str, defines: str, name: str, where: str, *also: str) -> ModuleType:
    """The module `name` of `package`, imported. also: what else it has to define.

    Raises: ConfigError naming `where` when it is no plug-in, cannot be imported, or lacks one of the names.
    """
    check_plugin(package, defines, name, where)
    try:
        module = importlib.import_module(f"{package}.{name}")
    except Exception as error:  # whatever a file of somebody's own raises while it is read
        raise ConfigError(
            f"{where}: got {name!r}, whose module cannot be imported: {type(error).__name__}: {error}"
        ) from error
    missing = [one for one in (defines, *also) if not hasattr(module, one)]
    if missing:
        raise ConfigError(f"{where}: got {name!r}, whose module defines no {', '.join(missing)}")
    return module
