"""A prefix on its way into the host tier: copied beside it, with room made where the file system is full."""

import asyncio
import errno
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from lpc_ray.serving.refusal import Refusal
from lpc_ray.serving.shelf import Resident, Shelf
from lpc_ray.serving.spare import drop_spare


class Source(Protocol):
    """Where prefixes come from. Both methods block and are called in threads."""

    def num_bytes(self, digest: str) -> int:
        """Bytes that `load` will write. Raises: PrefixNotFoundError, ArtifactError, StorageError."""
        ...

    def load(self, digest: str, folder: Path) -> None:
        """Write the prefix into the empty `folder`, checked. Raises: as `num_bytes`; `folder` may then hold a part."""
        ...


class Staging:
    """Stages prefixes for a shelf. changed: notified when users end and when loads do.

    patience_seconds: how long a prefix waits for room that users and other loads are about to free.
    """

    def __init__(
        self,
        shelf: Shelf,
        source: Source,
        clock: Callable[[], float],
        changed: asyncio.Condition,
        patience_seconds: float = 30,
    ):
        self._shelf, self._source, self._clock, self._changed = shelf, source, clock, changed
        self._patience = patience_seconds
        self._starved = asyncio.Lock()
        self._underway = 0

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Around the staging and installing of what one load brings in."""
        self._underway += 1
        try:
            yield
        finally:
            await self._less_underway()

    async def stage(self, digest: str, kept: Set[str]) -> tuple[Path, Resident]:
        """The prefix in a folder of its own. Where the file system is full, idle prefixes are evicted, but none of `kept`.

        Raises: what the source raises; Refusal 503 for a prefix that does not fit.
        """
        started = time.perf_counter()
        num_bytes = await asyncio.to_thread(self._source.num_bytes, digest)
        self._shelf.refuse_if_never(num_bytes, {digest})
        path = self._shelf.folder / f".loading-{uuid.uuid4().hex}"
        try:
            if not await self._fits(digest, path):
                await self._less_underway()  # one waits at a time, and for none that waits for it
                try:
                    async with self._starved:
                        while not await self._fits(digest, path):
                            await self._give_way(digest, num_bytes, kept)
                finally:
                    self._underway += 1
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return path, Resident(num_bytes, time.perf_counter() - started, self._clock())

    async def _fits(self, digest: str, path: Path) -> bool:
        """Copy `digest` into `path`; False, and nothing is there, when the file system was full."""
        try:
            path.mkdir()
            await asyncio.to_thread(self._source.load, digest, path)
        except Exception as error:
            if not is_full(error):
                raise
            shutil.rmtree(path, ignore_errors=True)
            return False
        return True

    async def _less_underway(self) -> None:
        self._underway -= 1
        async with self._changed:
            self._changed.notify_all()

    async def _give_way(self, digest: str, num_bytes: int, kept: Set[str]) -> None:
        """Free memory for `digest`: the spare, the oldest idle prefix, or what users and other loads are about to free."""
        if drop_spare(self._shelf.folder):
            return
        oldest = self._shelf.oldest_idle(kept)
        if oldest is not None:
            self._shelf.evict(oldest)
        elif not await self._something_changes(kept):
            free = shutil.disk_usage(self._shelf.folder).free
            raise Refusal(
                503,
                "host_tier_full",
                f"got {num_bytes} bytes of prefix {digest}, wanted at most the {free} that are free in {self._shelf.folder}",
                retry_after=30,
            )

    async def _something_changes(self, kept: Set[str]) -> bool:
        """Wait for a user or another load to end; False when there is none, or none did in time."""
        async with self._changed:
            if not self._underway and not self._shelf.in_use(kept):
                return False
            try:
                await asyncio.wait_for(self._changed.wait(), self._patience)
            except TimeoutError:
                return False
        return True


def is_full(error: BaseException | None) -> bool:
    """Whether `error` comes of a file system, or a quota, without room."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False
