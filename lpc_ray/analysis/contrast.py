"""The best row of each task against every other one, where only counts are known."""

from collections.abc import Sequence
from dataclasses import dataclass

from lpc_ray.analysis.row import Row
from lpc_ray.analysis.significance import NOISE_P_VALUE, unpaired


@dataclass(frozen=True, slots=True)
class Contrast:
    """`leader` has the best score of its run and task, the first of equals.

    p_values: other row's name → Fisher's exact test of the two counts, which takes checks as independent.
    is_tie: every row has the leader's score.
    """

    leader: Row
    p_values: dict[str, float]
    is_tie: bool

    @property
    def above(self) -> dict[str, float]:
        """The rows from which the leader differs by more than noise."""
        return {name: value for name, value in self.p_values.items() if value < NOISE_P_VALUE}

    @property
    def noise(self) -> dict[str, float]:
        return {name: value for name, value in self.p_values.items() if value >= NOISE_P_VALUE}


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
    counts = {row.name: (row.passed or 0, row.total or 0) for row in group}
    first = counts.pop(leader.name)
    return Contrast(leader, {name: unpaired(first, second) for name, second in counts.items()}, is_tie)
