"""What the host tier holds: folders, their bytes, their users, and which may be evicted. Synchronous: no call waits."""

import logging
import shutil
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from pathlib import Path

from lpc_ray.serving.refusal import Refusal


@dataclass(slots=True)
class Resident:
    """One prefix in the tier; times in seconds, `last_used` by the tier's clock."""

    num_bytes: int
    load_seconds: float
    last_used: float
    hits: int = 0


@dataclass(slots=True)
class TierCounts:
    """Since the tier began; `loaded_bytes` is what was brought in."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    failures: int = 0
    loaded_bytes: int = 0
    load_seconds: float = 0.0


Staged = dict[str, tuple[Path, Resident]]


class Shelf:
    """Prefixes in `folder`, least recently used first; it empties the folder first.

    They may take `limit_bytes`, or what is free there at the start, when that is less (a line in the log says so).

    Held, pinned and doomed prefixes may be named before they are resident. on_change: called after one came or went.
    """

    def __init__(self, folder: Path, limit_bytes: int, clock: Callable[[], float], on_change: Callable[[], None]):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder, self.limit_bytes, self.counts = folder, _limited(folder, limit_bytes), TierCounts()
        self.residents: OrderedDict[str, Resident] = OrderedDict()
        self.held: Counter[str] = Counter()
        self.pinned: set[str] = set()
        self.doomed: set[str] = set()
        self._clock, self._on_change = clock, on_change

    def __contains__(self, digest: str) -> bool:
        return digest in self.residents

    @property
    def resident_bytes(self) -> int:
        return sum(resident.num_bytes for resident in self.residents.values())

    def count(self, digest: str) -> None:
        """A request wants `digest`: a hit or a miss."""
        if digest in self:
            self.counts.hits += 1
        else:
            self.counts.misses += 1

    def touch(self, digest: str) -> None:
        """A request has `digest`: it is now the most recently used, and stays even if it was to go."""
        resident = self.residents[digest]
        resident.last_used = self._clock()
        resident.hits += 1
        self.residents.move_to_end(digest)
        self.doomed.discard(digest)

    def release(self, digests: Iterable[str]) -> None:
        """One user less of each; those that were to go and have no user left, go."""
        self.held.subtract(digests)
        for digest in [digest for digest in self.doomed if self.held[digest] <= 0]:
            self.evict(digest)

    def leaving(self, staged: Staged, kept: Set[str]) -> list[str] | None:
        """What is to leave for what is staged: the idle, oldest first; where these are not enough, what is in use too, oldest
        first, and of the idle only those still needed. Never what is pinned or of `kept`; None when all would not be enough.
        """
        new = sum(resident.num_bytes for digest, (_, resident) in staged.items() if digest not in self)
        excess = self.resident_bytes + new - self.limit_bytes
        found = []
        for digest in sorted(self.residents, key=lambda digest: self.held[digest] > 0):  # keeps the order within each
            if excess <= 0:
                break
            if digest not in self.pinned | kept:
                found.append(digest)
                excess -= self.residents[digest].num_bytes
        if any(self.held[digest] > 0 for digest in found):
            for digest in reversed(found.copy()):
                if self.residents[digest].num_bytes + excess <= 0:
                    found.remove(digest)
                    excess += self.residents[digest].num_bytes
        return found if excess <= 0 else None

    def oldest_idle(self, kept: Set[str]) -> str | None:
        """The prefix to evict first: it has no user, and is neither pinned nor one of `kept`."""
        return next((digest for digest in self.residents if self._is_idle(digest, kept)), None)

    def in_use(self, kept: Set[str]) -> bool:
        """Whether a prefix beside `kept` will be idle once its users have ended."""
        return any(self.held[digest] > 0 and digest not in self.pinned | kept for digest in self.residents)

    def _is_idle(self, digest: str, kept: Set[str]) -> bool:
        return self.held[digest] <= 0 and digest not in self.pinned | kept

    def install(self, staged: Staged) -> None:
        """Move staged folders in; what came in meanwhile stays as it is."""
        for digest, (path, resident) in staged.items():
            if digest not in self:
                path.rename(self.folder / digest)
                self.residents[digest] = resident
                self.counts.loaded_bytes += resident.num_bytes
                self.counts.load_seconds += resident.load_seconds
        self._on_change()

    def evict(self, digest: str) -> None:
        self.doomed.discard(digest)
        if self.residents.pop(digest, None) is None:
            return
        self.held.pop(digest, None)
        self.counts.evictions += 1
        shutil.rmtree(self.folder / digest, ignore_errors=True)
        self._on_change()

    def refuse_if_never(self, num_bytes: int, wanted: Set[str]) -> None:
        """Raises: Refusal 503 when `wanted`, of `num_bytes` together, cannot fit beside the pinned ones."""
        pinned = sum(self.residents[digest].num_bytes for digest in self.pinned - wanted if digest in self)
        if pinned + num_bytes > self.limit_bytes:
            raise Refusal(
                503,
                "host_tier_full",
                f"got {num_bytes} bytes of prefixes, wanted at most {self.limit_bytes - pinned}: the host tier holds "
                f"{self.limit_bytes} bytes, of which {pinned} are pinned",
                retry_after=30,
            )


def _limited(folder: Path, limit_bytes: int) -> int:
    free = shutil.disk_usage(folder).free
    if free < limit_bytes:
        logging.getLogger(__name__).warning(
            "host tier %s: %d MiB are free there, fewer than the %d MiB of host_tier_bytes: it holds no more than that",
            folder,
            free >> 20,
            limit_bytes >> 20,
        )
    return min(free, limit_bytes)
