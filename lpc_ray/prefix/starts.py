"""What initializers start from: the source, a text file, or an earlier LPC. Read and checked before anything heavy."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lpc_ray.artifacts.handles import ARTIFACTS, MANIFEST_FILE, find_digest
from lpc_ray.config.recipe import InitializerName, InitializersRecipe, Recipe
from lpc_ray.errors import ConfigError, DataError, PrefixNotFoundError
from lpc_ray.records import digest_of
from lpc_ray.sources.documents import read_text
from lpc_ray.storage import Store, open_store

TAKES_SOURCE = ("first_k", "strided_rope", "attention_matching")  # whose P tokens are tokens of the source, each once


@dataclass(frozen=True)
class Text:
    path: str
    token_ids: list[int]


@dataclass(frozen=True)
class Pretrained:
    """An earlier LPC in a store."""

    store: Store
    digest: str
    num_tokens: int


@dataclass(frozen=True)
class Starts:
    """material: the source's token ids, documents in order; the rest only where an initializer in use needs it.

    digests: initializer → what its arms' ids depend on besides the source.
    """

    material: list[int]
    text: Text | None = None
    pretrained: Pretrained | None = None
    digests: dict[str, str] = field(default_factory=dict)

    def check(self, initializer: InitializerName, num_tokens: int, where: str) -> None:
        """Raises: DataError when there is not enough to make a prefix of `num_tokens` of, ConfigError for another length."""
        got, wanted = f"{where}: got", f"wanted at least num_tokens = {num_tokens}"
        if initializer in TAKES_SOURCE and len(self.material) < num_tokens:
            raise DataError(f"{got} a source of {len(self.material)} tokens, {wanted}")
        if initializer == "text" and self.text is not None and len(self.text.token_ids) < num_tokens:
            raise DataError(f"{got} a text of {len(self.text.token_ids)} tokens in {self.text.path}, {wanted}")
        if initializer == "pretrained" and self.pretrained is not None and self.pretrained.num_tokens != num_tokens:
            raise ConfigError(
                f"{got} an earlier LPC of {self.pretrained.num_tokens} tokens, wanted exactly num_tokens = {num_tokens}"
            )


def read_starts(recipe: Recipe, material: list[int], encode: Callable[[str], list[int]]) -> Starts:
    """What the recipe's initializers start from. encode: text → token ids.

    Raises: ConfigError where an initializer in use lacks its settings, DataError for an unreadable text,
    PrefixNotFoundError for an earlier LPC that its store does not hold.
    """
    settings = recipe.initializers
    used = {name for entry in recipe.sweep for name in entry.initializer} | set(settings.training_free)
    text, pretrained = None, None
    digests: dict[str, str] = {}
    if "text" in used:
        text = _read_text(settings, encode)
        digests["text"] = digest_of(text.token_ids)
    if "pretrained" in used:
        pretrained = _find_pretrained(settings)
        digests["pretrained"] = pretrained.digest
    if "attention_matching" in used:
        digests["attention_matching"] = digest_of(settings.attention_matching.model_dump(mode="json"))
    return Starts(material, text, pretrained, digests)


def _read_text(settings: InitializersRecipe, encode: Callable[[str], list[int]]) -> Text:
    if settings.text is None:
        raise ConfigError(
            "recipe.initializers.text: missing, wanted the path of the text that initializer text starts from"
        )
    path = settings.text.path
    return Text(path, encode(read_text(Path(path), "recipe.initializers.text")))


def _find_pretrained(settings: InitializersRecipe) -> Pretrained:
    if settings.pretrained is None:
        raise ConfigError("recipe.initializers.pretrained: missing, wanted store and handle of an earlier LPC")
    store = open_store(settings.pretrained.store)
    digest = find_digest(store, settings.pretrained.handle)
    manifest = f"{ARTIFACTS}/{digest}/{MANIFEST_FILE}"
    if not store.exists(manifest):
        raise PrefixNotFoundError(f"recipe.initializers.pretrained: {store.path(manifest)} does not exist")
    told = store.read_json(manifest)
    if not isinstance(told, dict) or not isinstance(told.get("num_tokens"), int):
        raise ConfigError(f"recipe.initializers.pretrained: {store.path(manifest)} is no LPC manifest")
    return Pretrained(store, digest, told["num_tokens"])
