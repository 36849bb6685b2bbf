"""The host tier: prefixes in one local folder (best on tmpfs), least recently used first out, none while in use.

Below it is the artifact store, above it the engine's own blocks. A prefix is copied in once, however many requests wait
for it, and checked before anything is evicted for it.
"""

import asyncio
import shutil
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lpc_ray.serving.refusal import Refusal

CONCURRENT_LOADS = 2


class Source(Protocol):
    """Where prefixes come from. Both methods block and are called in threads."""

    def num_bytes(self, digest: str) -> int:
        """Bytes that `load` will write. Raises: PrefixNotFoundError, ArtifactError, StorageError."""
        ...

    def load(self, digest: str, folder: Path) -> None:
        """Write the prefix into the empty `folder`, checked. Raises: as `num_bytes`."""
        ...


@dataclass(slots=True)
class Resident:
    """One prefix in the tier; times in seconds, `last_used` by the tier's clock."""

    num_bytes: int
    load_seconds: float
    last_used: float
    hits: int = 0


@dataclass(slots=True)
class TierCounts:
    """Since the tier began; `bytes` is what was loaded."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    failures: int = 0
    loaded_bytes: int = 0
    load_seconds: float = 0.0


class HostTier:
    """Belongs to one event loop and owns `folder`, which it empties at the start.

    limit_bytes bounds what is resident; loads in progress (at most two) stand beside it until they are installed.
    patience_seconds: how long requests for resident prefixes may overtake one that waits for room.
    on_change: called after a prefix came or went.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        source: Source,
        patience_seconds: float = 0.5,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[], None] = lambda: None,
    ):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.limit_bytes = limit_bytes
        self.counts = TierCounts()
        self._folder, self._source, self._clock, self._on_change = folder, source, clock, on_change
        self._patience = patience_seconds
        self._residents: OrderedDict[str, Resident] = OrderedDict()
        self._held: Counter[str] = Counter()
        self._pinned: set[str] = set()
        self._doomed: set[str] = set()
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._load_slots = asyncio.Semaphore(CONCURRENT_LOADS)
        self._door = asyncio.Lock()
        self._composing = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._waiting_since: float | None = None

    def residents(self) -> dict[str, Resident]:
        """Digest → state, least recently used first."""
        return dict(self._residents)

    @property
    def resident_bytes(self) -> int:
        return sum(resident.num_bytes for resident in self._residents.values())

    @asynccontextmanager
    async def lease(self, digests: Iterable[str]) -> AsyncIterator[dict[str, Path]]:
        """Digest → folder of each prefix, all resident and safe from eviction until the block ends.

        Raises: what the source raises; Refusal 503 when the prefixes cannot fit beside the pinned ones.
        """
        wanted = tuple(dict.fromkeys(digests))
        if not wanted:
            yield {}
            return
        await self._wait_behind_the_impatient()
        if len(wanted) == 1:
            await self._hold(wanted)
        else:
            async with self._composing:  # two that each hold half of what they need would wait for ever
                await self._hold(wanted)
        try:
            yield {digest: self._folder / digest for digest in wanted}
        finally:
            await self._release(wanted)

    async def pin(self, digest: str) -> None:
        """Bring `digest` in and keep it. Raises: as `lease`."""
        async with self.lease([digest]):
            self._pinned.add(digest)

    async def unpin(self, digest: str) -> None:
        self._pinned.discard(digest)
        await self._release(())

    async def drop(self, digest: str) -> None:
        """Let `digest` go: now, or when the last request that uses it has ended."""
        self._pinned.discard(digest)
        if digest in self._residents:
            self._doomed.add(digest)
            await self._release(())

    async def _hold(self, wanted: tuple[str, ...]) -> None:
        self._held.update(wanted)
        try:
            if len(wanted) > 1:
                await self._check_fit(wanted)
            for digest in wanted:
                if digest in self._residents:
                    self.counts.hits += 1
                else:
                    self.counts.misses += 1
                    await self._loaded(digest)
                resident = self._residents[digest]
                resident.last_used = self._clock()
                resident.hits += 1
                self._residents.move_to_end(digest)
                self._doomed.discard(digest)
        except BaseException:
            await self._release(wanted)
            raise

    async def _release(self, digests: tuple[str, ...]) -> None:
        self._held.subtract(digests)
        for digest in [digest for digest in self._doomed if self._held[digest] <= 0]:
            self._evict(digest)
        async with self._changed:
            self._changed.notify_all()

    async def _loaded(self, digest: str) -> None:
        """Wait for the one load of `digest`, which goes on when this waiter gives up."""
        if digest not in self._loads:
            task = asyncio.create_task(self._load(digest))
            self._loads[digest] = task
            task.add_done_callback(lambda done: self._load_ended(digest, done))
        await asyncio.shield(self._loads[digest])

    def _load_ended(self, digest: str, task: asyncio.Task[None]) -> None:
        del self._loads[digest]
        if not task.cancelled() and task.exception() is not None:
            self.counts.failures += 1

    async def _load(self, digest: str) -> None:
        async with self._load_slots:
            started = time.perf_counter()
            num_bytes = await asyncio.to_thread(self._source.num_bytes, digest)
            self._refuse_if_never(num_bytes, {digest})
            staged = self._folder / f".loading-{uuid.uuid4().hex}"
            staged.mkdir()
            try:
                await asyncio.to_thread(self._source.load, digest, staged)
                seconds = time.perf_counter() - started
                async with self._door:
                    await self._make_room(num_bytes, digest)
                    staged.rename(self._folder / digest)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
            self._residents[digest] = Resident(num_bytes, seconds, self._clock())
            self.counts.loaded_bytes += num_bytes
            self.counts.load_seconds += seconds
        self._on_change()

    async def _make_room(self, num_bytes: int, digest: str) -> None:
        self._waiting_since = time.monotonic()
        async with self._changed:
            try:
                while (victims := self._victims(num_bytes)) is None:
                    self._refuse_if_never(num_bytes, {digest})
                    await self._changed.wait()
            finally:
                self._waiting_since = None
                self._changed.notify_all()
        for victim in victims:
            self._evict(victim)

    def _victims(self, num_bytes: int) -> list[str] | None:
        """Whom to evict, oldest first, for `num_bytes` more; None when those in use must end first."""
        excess = self.resident_bytes + num_bytes - self.limit_bytes
        victims = []
        for digest, resident in self._residents.items():
            if excess <= 0:
                break
            if self._held[digest] <= 0 and digest not in self._pinned:
                victims.append(digest)
                excess -= resident.num_bytes
        return victims if excess <= 0 else None

    async def _wait_behind_the_impatient(self) -> None:
        async with self._changed:
            while self._waiting_since is not None and time.monotonic() - self._waiting_since > self._patience:
                await self._changed.wait()

    async def _check_fit(self, wanted: tuple[str, ...]) -> None:
        total = 0
        for digest in wanted:
            resident = self._residents.get(digest)
            total += resident.num_bytes if resident else await asyncio.to_thread(self._source.num_bytes, digest)
        self._refuse_if_never(total, set(wanted))

    def _refuse_if_never(self, num_bytes: int, wanted: set[str]) -> None:
        pinned = sum(self._residents[d].num_bytes for d in self._pinned - wanted if d in self._residents)
        if pinned + num_bytes > self.limit_bytes:
            raise Refusal(
                503,
                "host_tier_full",
                f"got {num_bytes} bytes of prefixes, wanted at most {self.limit_bytes - pinned}: the host tier holds "
                f"{self.limit_bytes} bytes, of which {pinned} are pinned",
                retry_after=30,
            )

    def _evict(self, digest: str) -> None:
        self._doomed.discard(digest)
        if self._residents.pop(digest, None) is None:
            return
        self._held.pop(digest, None)
        self.counts.evictions += 1
        shutil.rmtree(self._folder / digest, ignore_errors=True)
        self._on_change()
