"""Model names: `<base>`, `<base>:<handle>`, or `<base>:<handle>+<handle>` for prefixes in the order given."""

from collections.abc import Callable
from dataclasses import dataclass

from lpc_ray.artifacts import handles
from lpc_ray.errors import ConfigError
from lpc_ray.serving.contract import MAX_COMPOSED
from lpc_ray.serving.refusal import Refusal


@dataclass(frozen=True, slots=True)
class ModelName:
    """base: the served model's name. handles: the prefixes a request asks for, in order; empty for the bare model."""

    base: str
    handles: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.base}:{'+'.join(self.handles)}" if self.handles else self.base


def check_handle(handle: object) -> str:
    """`handle`, if it is one by `lpc_ray.artifacts.handles`. Raises: Refusal 400."""
    return _checked(handles.check_handle, handle)


def check_new_handle(handle: object) -> str:
    """`handle`, if it may be set by `lpc_ray.artifacts.handles`. Raises: Refusal 400."""
    return _checked(handles.check_new_handle, handle)


def _checked(check: Callable[[str], str], handle: object) -> str:
    try:
        return check(handle if isinstance(handle, str) else "")
    except ConfigError as error:
        raise Refusal(400, "invalid_handle", str(error)[:400], param="model") from error


def parse_model(name: object, base: str) -> ModelName:
    """The parts of a model name, as served by the model called `base`.

    Raises: Refusal 404 for another base model, 400 for anything that is no name.
    """
    if not isinstance(name, str) or not name:
        raise Refusal(400, "invalid_model", f"got model {name!r}, wanted {base!r} or '{base}:<handle>'", param="model")
    if name == base:
        return ModelName(base)
    if not name.startswith(f"{base}:"):
        raise Refusal(404, "model_not_found", f"model {name[:300]!r} does not exist here, {base!r} does", param="model")
    named = tuple(check_handle(handle) for handle in name[len(base) + 1 :].split("+"))
    if len(named) > MAX_COMPOSED:
        raise Refusal(
            400, "too_many_prefixes", f"got {len(named)} handles, wanted at most {MAX_COMPOSED}", param="model"
        )
    return ModelName(base, named)
