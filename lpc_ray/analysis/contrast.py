"""The best row of each task against every other one."""

from collections.abc import Sequence
from dataclasses import dataclass

from lpc_ray.analysis.difference import Difference, difference
from lpc_ray.analysis.row import Row


@dataclass(frozen=True, slots=True)
class Contrast:
    """`leader` has the best score of its run and task, the first of equals.

    others: other row's name → how the leader differs from it.
    is_tie: every row has the leader's score.
    """

    leader: Row
    others: dict[str, Difference]
    is_tie: bool

    @property
    def above(self) -> dict[str, Difference]:
        """The rows from which the leader differs by more than noise."""
        return {name: found for name, found in self.others.items() if not found.is_noise}

    @property
    def noise(self) -> dict[str, Difference]:
        return {name: found for name, found in self.others.items() if found.is_noise}

    @property
    def tests(self) -> list[str]:
        """By which the others were judged, each once."""
        return sorted({found.test for found in self.others.values()})


def contrasts(rows: Sequence[Row]) -> list[Contrast]:
    """One for every run and task with two counted rows or more."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        if row.score is not None and row.passed is not None and row.total:
            groups.setdefault((row.run, row.task), []).append(row)
    return [_contrast(group) for group in groups.values() if len(group) > 1]


def _contrast(group: Sequence[Row]) -> Contrast:
    leader = max(group, key=lambda row: row.score or 0.0)
    is_tie = all(row.score == leader.score for row in group)
    found = {row.name: difference(leader, row) for row in group if row is not leader}
    return Contrast(leader, {name: told for name, told in found.items() if told is not None}, is_tie)
