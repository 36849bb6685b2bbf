from dataclasses import dataclass

from lpc_ray.artifacts.handles import ARTIFACTS, MANIFEST_FILE, find_digest
from lpc_ray.config.loading import Strict
from lpc_ray.errors import ArtifactError, ConfigError, PrefixNotFoundError
from lpc_ray.prefix.initializers.base import Encode, Initialized, Start
from lpc_ray.storage import Store, open_store


class Settings(Strict):
    """An earlier LPC: `handle` (or digest) in `store`, a run's folder or any store that `lpc` wrote."""

    store: str
    handle: str


@dataclass(frozen=True)
class Earlier:
    """An earlier LPC in a store."""

    store: Store
    digest: str
    num_tokens: int

    @property
    def artifact(self) -> tuple[Store, str]:
        return self.store, self.digest

    def check(self, num_tokens: int, where: str) -> None:
        if self.num_tokens != num_tokens:
            raise ConfigError(
                f"{where}: got an earlier LPC of {self.num_tokens} tokens, wanted exactly num_tokens = {num_tokens}"
            )


def minimum_source(num_tokens: int) -> int:
    return 0


def find(settings: Settings | None, encode: Encode) -> Earlier:
    """Raises: ConfigError without settings or for a file that is no manifest, PrefixNotFoundError."""
    if settings is None:
        raise ConfigError("recipe.initializers.pretrained: missing, wanted store and handle of an earlier LPC")
    store = open_store(settings.store)
    digest = find_digest(store, settings.handle)
    path = f"{ARTIFACTS}/{digest}/{MANIFEST_FILE}"
    if not store.exists(path):
        raise PrefixNotFoundError(f"recipe.initializers.pretrained: {store.path(path)} does not exist")
    manifest = store.read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("num_tokens"), int):
        raise ConfigError(f"recipe.initializers.pretrained: {store.path(path)} is no LPC manifest")
    return Earlier(store, digest, manifest["num_tokens"])


def initialize(start: Start) -> Initialized:
    """The keys and values of an earlier LPC of the same model.

    This project's own; any LPC is a start, as a soft prompt is in SPoT, arXiv 2110.07904, section 2.
    Raises: ArtifactError for an LPC of another model (the field is named), a corrupt one, or one that is not P tokens long;
    PrefixNotFoundError.
    """
    from lpc_ray.artifacts.store import fetch, load_prefix

    earlier = start.extra
    assert isinstance(earlier, Earlier) and start.cache is not None, "read_starts finds what is in use"
    assert start.identity is not None, "an earlier LPC is of one model"
    folder = fetch(earlier.store / ARTIFACTS, earlier.digest, start.cache)
    manifest, keys, values = load_prefix(folder, start.identity)
    if manifest.num_tokens != start.num_tokens:
        raise ArtifactError(
            f"pretrained: got prefix {manifest.digest} of {manifest.num_tokens} tokens, wanted exactly P = "
            f"{start.num_tokens}"
        )
    return Initialized(keys.float(), values.float(), {"initializer": "pretrained", "pretrained_from": manifest.digest})
