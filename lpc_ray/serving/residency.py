"""The host tier: prefixes in one local folder (best on tmpfs), least recently used first out, none while in use.

Below it is the artifact store, above it the engine's own blocks. A prefix is copied in once, however many requests wait
for it, and checked before anything is evicted for it.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from lpc_ray.serving.refusal import Refusal
from lpc_ray.serving.shelf import Resident, Shelf, Staged, TierCounts
from lpc_ray.serving.staging import Source, Staging

CONCURRENT_LOADS = 2


class Lease(dict[str, Path]):
    """Digest → folder of prefixes that are resident and safe from eviction until it ends; what has a file open may read on."""

    def __init__(self, folders: dict[str, Path], release: Callable[[], Awaitable[None]]):
        super().__init__(folders)
        self._release: Callable[[], Awaitable[None]] | None = release

    async def end(self) -> None:
        """Does nothing the second time."""
        release, self._release = self._release, None
        if release is not None:
            await release()


class HostTier:
    """Belongs to one event loop and owns `folder`, which it empties at the start.

    limit_bytes bounds what is resident, and so does the room there is at the start; two loads in progress may stand beside it
    until they are installed, and the spare of the next. Where the file system is full nevertheless, idle prefixes go.
    A load that needs room chooses what is to leave, least recently used first, and waits for its users, room_seconds at most;
    requests for anything else go on, and those for what leaves come after it. wait_seconds: how long a request waits for its
    prefixes in all. on_change: called after a prefix came or went.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        source: Source,
        room_seconds: float = 10,
        wait_seconds: float = 60,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[], None] = lambda: None,
    ):
        self._shelf = Shelf(folder, limit_bytes, clock, on_change)
        self._source, self._room_seconds, self._wait_seconds = source, room_seconds, wait_seconds
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._releases: set[asyncio.Future[None]] = set()
        self._load_slots = asyncio.Semaphore(CONCURRENT_LOADS)
        self._door = asyncio.Lock()
        self._composing = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._staging = Staging(self._shelf, source, clock, self._changed)
        self._leaving: set[str] = set()

    @property
    def limit_bytes(self) -> int:
        return self._shelf.limit_bytes

    @property
    def resident_bytes(self) -> int:
        return self._shelf.resident_bytes

    @property
    def counts(self) -> TierCounts:
        return self._shelf.counts

    def residents(self) -> dict[str, Resident]:
        """Digest → state, least recently used first."""
        return dict(self._shelf.residents)

    @asynccontextmanager
    async def lease(self, digests: Iterable[str]) -> AsyncIterator[Lease]:
        """The prefixes, all resident until the block or the lease ends.

        Raises: what the source raises; Refusal 503 when the prefixes cannot fit beside the pinned ones, or on the file system,
        or are not there in time.
        """
        wanted = tuple(dict.fromkeys(digests))
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._hold(wanted)
        except TimeoutError:
            message = f"the prefixes were not loaded within {self._wait_seconds:g} s"
            raise Refusal(503, "prefix_loading", message, retry_after=5) from None
        for digest in wanted:
            self._shelf.touch(digest)
        lease = Lease({digest: self._shelf.folder / digest for digest in wanted}, partial(self._release, wanted))
        try:
            yield lease
        finally:
            await lease.end()

    async def _hold(self, wanted: tuple[str, ...]) -> None:
        if len(wanted) == 1:
            await self._hold_one(wanted[0])
        elif wanted:
            async with self._composing:
                await self._hold_together(wanted)

    async def pin(self, digest: str) -> None:
        """Bring `digest` in and keep it. Raises: as `lease`."""
        async with self.lease([digest]):
            self._shelf.pinned.add(digest)

    async def unpin(self, digest: str) -> None:
        self._shelf.pinned.discard(digest)
        await self._release(())

    async def drop(self, digest: str) -> None:
        """Let `digest` go: now, or when the last request that uses it has ended."""
        self._shelf.pinned.discard(digest)
        if digest in self._shelf:
            self._shelf.doomed.add(digest)
            await self._release(())

    async def _hold_one(self, digest: str) -> None:
        await self._until_none_leaves((digest,))
        self._shelf.held[digest] += 1  # so that it cannot be evicted once it is there
        self._shelf.count(digest)
        try:
            while digest not in self._shelf:
                await asyncio.shield(self._loads.get(digest) or self._start_load((digest,), ()))
        except BaseException:
            await self._release((digest,))
            raise

    async def _hold_together(self, wanted: tuple[str, ...]) -> None:
        """All or none: whoever waits for room holds nothing that another waits for."""
        await self._check_fit(wanted)
        for digest in wanted:
            self._shelf.count(digest)
        await self._until_none_leaves(wanted)
        while missing := tuple(digest for digest in wanted if digest not in self._shelf):
            loading = [self._loads[digest] for digest in missing if digest in self._loads]
            if loading:
                await asyncio.shield(loading[0])
                continue
            task = self._start_load(missing, wanted)
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                task.add_done_callback(lambda done: self._give_back(wanted, done))
                raise
            return
        self._shelf.held.update(wanted)

    def _give_back(self, digests: tuple[str, ...], task: asyncio.Task[None]) -> None:
        """Release what a load took for a request that has left."""
        if not task.cancelled() and task.exception() is None:
            self._releases.add(release := asyncio.ensure_future(self._release(digests)))
            release.add_done_callback(self._releases.discard)

    async def _release(self, digests: tuple[str, ...]) -> None:
        self._shelf.release(digests)
        async with self._changed:
            self._changed.notify_all()

    def _start_load(self, digests: tuple[str, ...], together: tuple[str, ...]) -> asyncio.Task[None]:
        """The one load of `digests`, which continues when its waiters give up."""
        task = asyncio.create_task(self._load(digests, together))
        self._loads.update(dict.fromkeys(digests, task))
        task.add_done_callback(lambda done: self._load_ended(digests, done))
        return task

    def _load_ended(self, digests: tuple[str, ...], task: asyncio.Task[None]) -> None:
        for digest in digests:
            del self._loads[digest]
        if not task.cancelled() and task.exception() is not None:
            self.counts.failures += 1

    async def _load(self, digests: tuple[str, ...], together: tuple[str, ...]) -> None:
        """Bring in `digests`; with `together`, see that all of those are resident at once, and hold them."""
        staged: Staged = {}
        kept = set(together) | set(digests)
        try:
            async with self._load_slots, self._staging.load():
                for digest in digests:
                    staged[digest] = await self._staging.stage(digest, kept)
                async with self._door:
                    while True:
                        for digest in together:
                            if digest not in self._shelf and digest not in staged:
                                staged[digest] = await self._staging.stage(digest, kept)
                        await self._make_room(staged, kept)
                        if all(digest in self._shelf or digest in staged for digest in together):
                            break
                    self._shelf.install(staged)
                    self._shelf.held.update(together)
        finally:
            for path, _ in staged.values():
                shutil.rmtree(path, ignore_errors=True)

    async def _make_room(self, staged: Staged, kept: set[str]) -> None:
        """Choose what leaves for what is staged, never any of `kept`, and evict it once its users have it no more.

        Raises: Refusal 503 when they have it for too long.
        """
        async with self._changed:
            try:
                async with asyncio.timeout(self._room_seconds):
                    while (leaving := self._shelf.leaving(staged, kept)) is None or any(
                        self._shelf.held[digest] > 0 for digest in leaving
                    ):
                        self._shelf.refuse_if_never(sum(resident.num_bytes for _, resident in staged.values()), kept)
                        self._leaving = set(leaving or ())
                        await self._changed.wait()
            except TimeoutError:
                message = f"no room was free in the host tier within {self._room_seconds:g} s"
                raise Refusal(503, "host_tier_busy", message, retry_after=2) from None
            finally:
                self._leaving = set()
                self._changed.notify_all()
            for digest in leaving:
                self._shelf.evict(digest)

    async def _until_none_leaves(self, digests: tuple[str, ...]) -> None:
        """Return once none of `digests` is about to be evicted."""
        async with self._changed:
            while not self._leaving.isdisjoint(digests):
                await self._changed.wait()

    async def _check_fit(self, wanted: tuple[str, ...]) -> None:
        """Raises: Refusal 503 for prefixes that can never be resident at once."""
        total = 0
        for digest in wanted:
            resident = self._shelf.residents.get(digest)
            total += resident.num_bytes if resident else await asyncio.to_thread(self._source.num_bytes, digest)
        self._shelf.refuse_if_never(total, set(wanted))
