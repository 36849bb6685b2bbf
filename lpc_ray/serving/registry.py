"""Handle → digest: the names a server knows, kept in one file of a store."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from lpc_ray.errors import PrefixNotFoundError, StorageError
from lpc_ray.serving.handles import check_handle, check_new_handle
from lpc_ray.storage import Store

FILE = "handles.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a handle points to. num_tokens: visible length; num_bytes: of both tensors; pinned: kept in the host tier."""

    digest: str
    kind: str
    num_tokens: int
    num_bytes: int
    pinned: bool = False


class Registry:
    """The handles of one server; every change is first written, then seen, whole or not at all.

    A request takes its `Entry` once and keeps it: moving a handle never touches requests in flight.
    Raises: StorageError when the file cannot be read or written, or holds something else.
    """

    def __init__(self, store: Store):
        self._store = store
        self._entries: Mapping[str, Entry] = MappingProxyType(self._read())

    def _read(self) -> dict[str, Entry]:
        if not self._store.exists(FILE):
            return {}
        raw: Any = self._store.read_json(FILE)
        try:
            return {check_handle(handle): Entry(**fields) for handle, fields in raw.items()}
        except (TypeError, AttributeError) as error:
            raise StorageError(f"{self._store.path(FILE)}: got no table of handles: {error}") from error

    def __getitem__(self, handle: str) -> Entry:
        """Raises: PrefixNotFoundError."""
        try:
            return self._entries[handle]
        except KeyError:
            raise PrefixNotFoundError(f"no prefix is loaded under handle {handle!r}") from None

    def entries(self) -> Mapping[str, Entry]:
        """All handles, as they are now; later changes do not show in it."""
        return self._entries

    def move(self, handle: str, entry: Entry) -> Entry | None:
        """Point `handle` (new or not) to `entry`; returns what it pointed to. A pin stays with the handle."""
        previous = self._entries.get(check_new_handle(handle))
        if previous is not None:
            entry = replace(entry, pinned=entry.pinned or previous.pinned)
        self._write({**self._entries, handle: entry})
        return previous

    def pin(self, handle: str, pinned: bool) -> Entry:
        """Raises: PrefixNotFoundError."""
        entry = replace(self[handle], pinned=pinned)
        self._write({**self._entries, handle: entry})
        return entry

    def remove(self, handle: str) -> Entry:
        """Raises: PrefixNotFoundError."""
        entry = self[handle]
        self._write({name: other for name, other in self._entries.items() if name != handle})
        return entry

    def names(self, digest: str) -> list[str]:
        """The handles that point to `digest`."""
        return [handle for handle, entry in self._entries.items() if entry.digest == digest]

    def _write(self, entries: dict[str, Entry]) -> None:
        self._store.write_json(FILE, {handle: asdict(entry) for handle, entry in entries.items()})
        self._entries = MappingProxyType(entries)
