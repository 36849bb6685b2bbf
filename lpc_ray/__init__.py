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
