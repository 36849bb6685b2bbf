"""What each handle may have answered at any time, while an admin moves and removes handles."""

import time
from dataclasses import dataclass, field


@dataclass
class Handles:
    """wanted: (fact, prompt) → transformers' greedy text after that fact's prefix.

    A change of a handle lasts from the admin's request to its answer; while it lasts, and for requests that overlap it, both
    the old fact and the new one are right. A fact is None while the handle is not loaded.
    """

    wanted: dict[tuple[str, str], str]
    prompts: tuple[str, ...]
    _changes: dict[str, list[tuple[float, float, str | None]]] = field(default_factory=dict)

    def load(self, handle: str, fact: str) -> None:
        """From the start on."""
        self._changes[handle] = [(0.0, 0.0, fact)]

    def begin(self, handle: str, fact: str | None) -> None:
        self._changes[handle].append((time.monotonic(), float("inf"), fact))

    def end(self, handle: str) -> None:
        began, _, fact = self._changes[handle][-1]
        self._changes[handle][-1] = (began, time.monotonic(), fact)

    def now(self, handle: str) -> str | None:
        return self._changes[handle][-1][2]

    def texts(self, handle: str, prompt: str, began: float, ended: float) -> set[str]:
        return {self.wanted[fact, prompt] for fact in self._facts(handle, began, ended) if fact is not None}

    def was_absent(self, handle: str, began: float, ended: float) -> bool:
        return None in self._facts(handle, began, ended)

    def _facts(self, handle: str, began: float, ended: float) -> set[str | None]:
        """Every fact that held at some time between `began` and `ended`."""
        changes = self._changes[handle]
        found = set()
        for number, (start, _, fact) in enumerate(changes):
            replaced = changes[number + 1][1] if number + 1 < len(changes) else float("inf")
            if start <= ended and began <= replaced:
                found.add(fact)
        return found
