"""Handle → digest: the names that a server knows."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from lpc_ray.errors import PrefixNotFoundError
from lpc_ray.serving.handles import check_handle, check_new_handle
from lpc_ray.serving.tables import Entry, Table


class Registry:
    """The handles of one server; every change is first written, then seen, whole or not at all.

    A request takes its `Entry` once and keeps it: moving a handle never touches requests in flight. It belongs to one event
    loop, which goes on while a change is written.
    Raises: StorageError as the table does.
    """

    def __init__(self, table: Table):
        self._table = table
        self._entries = {check_handle(handle): entry for handle, entry in table.entries().items()}
        self._configured = table.configured()
        self._by_digest: defaultdict[str, set[str]] = defaultdict(set)
        for handle, entry in self._entries.items():
            self._by_digest[entry.digest].add(handle)
        self._sorted: list[str] | None = None
        self._writing = asyncio.Lock()

    def __getitem__(self, handle: str) -> Entry:
        """Raises: PrefixNotFoundError."""
        try:
            return self._entries[handle]
        except KeyError:
            raise PrefixNotFoundError(f"no prefix is loaded under handle {handle!r}") from None

    def entries(self) -> Mapping[str, Entry]:
        """All handles; later changes show in it."""
        return MappingProxyType(self._entries)

    def handles(self) -> list[str]:
        """All handles in alphabetical order, as they are now."""
        if self._sorted is None:
            self._sorted = sorted(self._entries)
        return self._sorted

    def pinned(self) -> set[str]:
        """The digests that some handle pins."""
        return {entry.digest for entry in self._entries.values() if entry.pinned}

    async def move(self, handle: str, entry: Entry) -> Entry | None:
        """Point `handle` (new or not) to `entry`; returns what it pointed to. A pin stays with the handle."""
        check_new_handle(handle)
        async with self._writing:
            previous = self._entries.get(handle)
            if previous is not None:
                entry = replace(entry, pinned=entry.pinned or previous.pinned)
            await asyncio.to_thread(self._table.put, {handle: entry})
            self._set(handle, entry)
        return previous

    async def move_all(self, entries: Mapping[str, Entry]) -> None:
        """`move` for each, in one write."""
        async with self._writing:
            moved = {
                handle: replace(
                    entry, pinned=entry.pinned or (handle in self._entries and self._entries[handle].pinned)
                )
                for handle, entry in entries.items()
            }
            await asyncio.to_thread(self._table.put, moved)
            for handle, entry in moved.items():
                self._set(handle, entry)

    async def pin(self, handle: str, pinned: bool) -> Entry:
        """Raises: PrefixNotFoundError."""
        async with self._writing:
            entry = replace(self[handle], pinned=pinned)
            await asyncio.to_thread(self._table.put, {handle: entry})
            self._set(handle, entry)
        return entry

    async def remove(self, handle: str) -> Entry:
        """Raises: PrefixNotFoundError."""
        async with self._writing:
            entry = self[handle]
            await asyncio.to_thread(self._table.remove, handle)
            self._set(handle, None)
        return entry

    def names(self, digest: str) -> list[str]:
        """The handles that point to `digest`."""
        return sorted(self._by_digest.get(digest, ()))

    def to_load(self, named: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        """Of the handles and digests that the settings name: those to load now, and a line for each that stays otherwise.

        What an admin did since the settings named the same digest stands: a handle that was deleted stays deleted, one that
        was moved stays where it is.
        """
        wanted, lines = {}, []
        for handle, digest in named.items():
            now = self._entries.get(check_new_handle(handle))
            if now is not None and now.digest == digest:
                continue
            if self._configured.get(handle) != digest:
                wanted[handle] = digest
            elif now is None:
                lines.append(f"prefix {handle}: not served: it was deleted since the settings named {digest}")
            else:
                lines.append(f"prefix {handle}: serves {now.digest}, moved since the settings named {digest}")
        return wanted, lines

    async def configured(self, named: Mapping[str, str]) -> None:
        """The settings' handles `named` were loaded, or found."""
        async with self._writing:
            await asyncio.to_thread(self._table.configure, dict(named))
            self._configured.update(named)

    def _set(self, handle: str, entry: Entry | None) -> None:
        previous = self._entries.get(handle)
        if previous is not None:
            self._by_digest[previous.digest].discard(handle)
            if not self._by_digest[previous.digest]:
                del self._by_digest[previous.digest]
        if entry is None:
            self._entries.pop(handle, None)
        else:
            self._entries[handle] = entry
            self._by_digest[entry.digest].add(handle)
        if (previous is None) != (entry is None):
            self._sorted = None
