"""What initializers start from: the source, and what some need besides. Found and checked before anything heavy."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from lpc_ray.config.loading import Strict, nearest, validated
from lpc_ray.config.recipe import PrefixRecipe, Recipe
from lpc_ray.errors import ConfigError, DataError
from lpc_ray.prefix.initializers import initializer_names, load_initializer
from lpc_ray.prefix.initializers.base import Extra, Initialized, Start
from lpc_ray.records import digest_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lpc_ray.model.identity import ModelIdentity


@dataclass(frozen=True)
class Starts:
    """source_ids: the source's token ids, documents in order.

    settings: of each initializer in use, None where it has none; extras: what those in use start from besides the source;
    digests: initializer → what its arms' ids depend on besides the source.
    """

    source_ids: list[int]
    settings: dict[str, Strict | None] = field(default_factory=dict)
    extras: dict[str, Extra] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def check(self, initializer: str, num_tokens: int, where: str) -> None:
        """Raises: DataError when there is not enough to make a prefix of `num_tokens` of, ConfigError for another length."""
        least = load_initializer(initializer).minimum_source(num_tokens)
        if len(self.source_ids) < least:
            rule = f"num_tokens = {num_tokens}" if least == num_tokens else str(least)
            raise DataError(f"{where}: got a source of {len(self.source_ids)} tokens, wanted at least {rule}")
        if initializer in self.extras:
            self.extras[initializer].check(num_tokens, where)

    def whole_source(self) -> dict[str, int]:
        """Initializer in use that reads the whole source → tokens of its longest forward."""
        found = {}
        for name, settings in sorted(self.settings.items()):
            module = load_initializer(name)
            if hasattr(module, "whole_source"):
                found[name] = module.whole_source(len(self.source_ids), settings)
        return found

    def initialize(
        self,
        initializer: str,
        model: "PreTrainedModel",
        identity: "ModelIdentity",
        num_tokens: int,
        seed: int,
        prefix: PrefixRecipe,
        cache: Path,
    ) -> Initialized:
        """Start a prefix of `num_tokens`. cache: a local folder for an earlier LPC that lies in an object store.

        Raises: DataError when there is too little to start from, ConfigError for an unfit RoPE, ArtifactError for an earlier
        LPC of another model or length.
        """
        settings, extra = self.settings.get(initializer), self.extras.get(initializer)
        start = Start(model, self.source_ids, num_tokens, seed, prefix, settings, extra, identity, cache)
        return load_initializer(initializer).initialize(start)


def read_starts(recipe: Recipe, source_ids: list[int], encode: Callable[[str], list[int]]) -> Starts:
    """What the recipe's initializers start from. encode: text → token ids.

    Raises: ConfigError for an unknown initializer, for settings that it does not take, and where one in use lacks its
    settings; DataError and PrefixNotFoundError for what cannot be read.
    """
    given = _checked_settings(recipe)
    settings, extras, digests = {}, {}, {}
    for name, where in _in_use(recipe).items():
        module = load_initializer(name, where)
        settings[name] = given.get(name, _default_settings(module))
        if hasattr(module, "find"):
            extras[name] = module.find(settings[name], encode)
            digests[name] = extras[name].digest
        elif settings[name] is not None:
            digests[name] = digest_of(settings[name].model_dump(mode="json"))
    return Starts(source_ids, settings, extras, digests)


def _in_use(recipe: Recipe) -> dict[str, str]:
    """Initializer → where the recipe names it first."""
    found: dict[str, str] = {}
    for number, entry in enumerate(recipe.sweep):
        for place, name in enumerate(entry.initializer):
            found.setdefault(name, f"recipe.sweep.{number}.initializer.{place}")
    for place, name in enumerate(recipe.initializers.training_free):
        found.setdefault(name, f"recipe.initializers.training_free.{place}")
    return found


def _checked_settings(recipe: Recipe) -> dict[str, Strict]:
    """The settings that the recipe gives, also of initializers that it does not use."""
    names, found = set(initializer_names()), {}
    for name, settings in recipe.initializers.settings().items():
        where = f"recipe.initializers.{name}"
        if name not in names:
            raise ConfigError(f"unknown key {where}{nearest(name, {*names, 'training_free'})}")
        kind = getattr(load_initializer(name, where), "Settings", None)
        if kind is None:
            raise ConfigError(f"{where}: got settings, wanted none: initializer {name} takes none")
        found[name] = validated(kind, settings, where)
    return found


def _default_settings(module: ModuleType) -> Strict | None:
    """None for an initializer without settings, or with one that must be given."""
    kind = getattr(module, "Settings", None)
    if kind is None or any(one.is_required() for one in kind.model_fields.values()):
        return None
    return kind()
