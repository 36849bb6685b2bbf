"""What became of every request, and which of it nobody can account for."""

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """answers: (kind of client, outcome) → how many. faults: (from, until) in seconds; until is inf while it lasts.

    wrong: facts that were another's or nobody's. lost: requests that were never answered right. unexplained: refusals
    that no fault explains. Times are `time.monotonic()`.
    """

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[tuple[str, float, float]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.answers.total()

    def begin_fault(self, what: str) -> None:
        self.faults.append((what, time.monotonic(), float("inf")))

    def end_fault(self) -> None:
        what, began, _ = self.faults[-1]
        self.faults[-1] = (what, began, time.monotonic())

    def has_fault(self, began: float, ended: float) -> bool:
        """Whether a process was missing at some time while a request ran."""
        return any(start <= ended and began <= until for _, start, until in self.faults)

    def refused(self, kind: str, status: int, body: str, began: float, allowed: set[int]) -> None:
        """Counts an answer that is no success. allowed: statuses that this client asked for."""
        ended = time.monotonic()
        if status in allowed:
            self.answers[kind, str(status)] += 1
        elif status >= 500 and "error" in body and self.has_fault(began, ended):
            self.answers[kind, f"{status} in a fault"] += 1
        else:
            self.answers[kind, f"{status} unexplained"] += 1
            self.unexplained.append(f"{kind}: {status} {body[:300]}")
