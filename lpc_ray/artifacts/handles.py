"""Handles: names that point to artifacts. A store holds `artifacts/<digest>/` and one `handles/<handle>.json` per name.

The digest is the identity of an LPC; a handle may be pointed at another digest later. One file per handle, each written
whole, so that two writers of different handles never lose each other's entry. A run's folder is such a store.
"""

import re

from lpc_ray.errors import ConfigError, PrefixNotFoundError, StorageError
from lpc_ray.storage import Store

ARTIFACTS = "artifacts"
HANDLES = "handles"
MANIFEST_FILE = "lpc.json"
_HANDLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"[0-9a-f]{32,64}")
_LIKE_DIGEST = re.compile(r"[0-9a-fA-F]{32,64}")


def check_handle(handle: str) -> str:
    """`handle` itself. Raises: ConfigError for anything but 1 to 128 letters, digits, `.`, `_` or `-`, a letter or digit
    first (so never `:`, `+` or `/`, which model names, compositions and paths use).
    """
    if not _HANDLE.fullmatch(handle):
        raise ConfigError(
            f"handle {handle!r}: wanted 1 to 128 letters, digits, '.', '_' or '-', a letter or digit first"
        )
    return handle


def check_new_handle(handle: str) -> str:
    """`handle` itself, which may be set. Raises: ConfigError as `check_handle`, and for one that reads as a digest."""
    if _LIKE_DIGEST.fullmatch(check_handle(handle)):
        raise ConfigError(f"handle {handle!r}: got what reads as a digest, wanted a name")
    return handle


def set_handle(store: Store, handle: str, digest: str) -> None:
    """Point `handle` at `digest`, at once and whole; the digest's artifact should be in the store before.

    Raises: ConfigError for a malformed digest, or a handle that `check_new_handle` refuses; StorageError.
    """
    if not _DIGEST.fullmatch(digest):
        raise ConfigError(f"handle {handle!r}: got digest {digest!r}, wanted 32 to 64 hexadecimal digits")
    store.write_json(f"{HANDLES}/{check_new_handle(handle)}.json", {"digest": digest})


def read_handle(store: Store, handle: str) -> str:
    """The digest that `handle` points to.

    Raises: ConfigError for a malformed handle, PrefixNotFoundError for one the store does not hold, StorageError.
    """
    path = f"{HANDLES}/{check_handle(handle)}.json"
    if not store.exists(path):
        raise PrefixNotFoundError(f"handle {handle!r}: not in {store}")
    entry = store.read_json(path)
    digest = entry.get("digest") if isinstance(entry, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise StorageError(f"{store.path(path)}: got no digest, wanted {{'digest': 32 to 64 hexadecimal digits}}")
    return digest


def find_digest(store: Store, name: str) -> str:
    """The digest that `name` stands for: a digest in the store, a handle, or the first 8 or more digits of a digest.

    Raises: ConfigError for a malformed handle or digits that several digests share, PrefixNotFoundError, StorageError.
    """
    check_handle(name)
    if _DIGEST.fullmatch(name) and store.exists(f"{ARTIFACTS}/{name}"):
        return name
    if store.exists(f"{HANDLES}/{name}.json"):
        return read_handle(store, name)
    found = [digest for digest in store.names(ARTIFACTS) if digest.startswith(name)] if len(name) >= 8 else []
    if len(found) > 1:
        raise ConfigError(f"{name!r}: got the first digits of {len(found)} digests in {store}, wanted of one")
    if not found:
        raise PrefixNotFoundError(f"{name!r}: neither a handle nor a digest in {store}")
    return found[0]


def handle_names(store: Store) -> list[str]:
    """The handles in the store, sorted. Raises: StorageError."""
    names = (name.removesuffix(".json") for name in store.names(HANDLES) if name.endswith(".json"))
    return [name for name in names if _HANDLE.fullmatch(name)]


def parts_of(expression: str) -> list[str]:
    """The handles of a composition `a+b`, in the order their prefixes are concatenated; a plain handle is one part.

    Raises: ConfigError for an empty or malformed part.
    """
    return [check_handle(part) for part in expression.split("+")]
