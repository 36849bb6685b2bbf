"""What an initializer is given and what it gives. Loads no torch, so that a plan can ask each for what it needs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lpc_ray.config.recipe import PrefixRecipe
from lpc_ray.errors import DataError
from lpc_ray.storage import Store

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lpc_ray.model.identity import ModelIdentity

Encode = Callable[[str], list[int]]


class Extra(Protocol):
    """What an initializer starts from besides the source. `digest` is part of the ids of its arms."""

    @property
    def digest(self) -> str: ...

    @property
    def artifact(self) -> tuple[Store, str] | None:
        """The earlier LPC that it is, as store and digest; None for anything else."""

    def check(self, num_tokens: int, where: str) -> None:
        """Raises: DataError or ConfigError naming `where`, when no prefix of `num_tokens` can be made of it."""


@dataclass(frozen=True)
class Start:
    """One prefix to be started.

    model: frozen and prefix-attached (`lpc_ray.prefix.attention.attach`); source_ids: the source's token ids, documents in
    order; num_tokens: P; seed: the initializer's own; prefix: `recipe.prefix`; settings: the initializer's `Settings`, if it
    has any; extra: what its `find` found; identity: the model's; cache: a local folder for what lies in an object store.
    """

    model: "PreTrainedModel"
    source_ids: list[int]
    num_tokens: int
    seed: int = 0
    prefix: PrefixRecipe = PrefixRecipe()
    settings: Any = None
    extra: Any = None
    identity: "ModelIdentity | None" = None
    cache: Path | None = None


@dataclass(frozen=True)
class Initialized:
    """keys, values: fp32 [L, P, H, D]; `record` goes into the artifact's provenance."""

    keys: "torch.Tensor"
    values: "torch.Tensor"
    record: dict[str, Any] = field(default_factory=dict)


def require(condition: bool, where: str, got: int, wanted: str) -> None:
    """Raises: DataError naming the initializer, the tokens it got and its rule, unless `condition`."""
    if not condition:
        raise DataError(f"{where}: got a source of {got} tokens, wanted {wanted}")
