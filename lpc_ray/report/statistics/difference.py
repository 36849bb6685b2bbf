"""Whether two rows of one run and task differ by more than noise: case by case where that is known, else by their counts.

A row is one artifact or prompt, so only the cases vary here; what other seeds would give is `recipe_ranking`'s business.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from lpc_ray.report.ledger.row import Row
from lpc_ray.report.significance import NOISE_P_VALUE, holm, paired, unpaired


@dataclass(frozen=True, slots=True)
class Difference:
    """Of a first row from a second. is_lower: the first passed less of what was compared.

    p_value: two-sided, of the two being equal. test: the exact McNemar test on the cases that both have, or Fisher's exact
    test of the counts, which takes checks as independent.
    """

    is_lower: bool
    p_value: float
    test: Literal["McNemar", "Fisher"]

    @property
    def is_noise(self) -> bool:
        return self.p_value >= NOISE_P_VALUE


def difference(first: Row, second: Row) -> Difference | None:
    """None where one of the two has no score, or a share without a count."""
    paired_test = paired(first.cases or {}, second.cases or {})
    if paired_test is not None:
        return Difference(paired_test.first_passed < paired_test.second_passed, paired_test.p_value, "McNemar")
    if first.score is None or second.score is None or not first.total or not second.total:
        return None
    p_value = unpaired((first.passed or 0, first.total), (second.passed or 0, second.total))
    return Difference(first.score < second.score, p_value, "Fisher")


def corrected(found: Sequence[Difference | None]) -> list[Difference | None]:
    """In the order given, p values after Holm's correction for the number of those that could be tested."""
    p_values = iter(holm([one.p_value for one in found if one is not None]))
    return [None if one is None else replace(one, p_value=next(p_values)) for one in found]


@dataclass(frozen=True, slots=True)
class Contrast:
    """`leader` has the best score of its run and task, the first of equals.

    others: other row's name → how the leader differs from it, p corrected for all pairs of rows (Holm): the scores chose it.
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
    rivals = [row for row in group if row is not leader]
    pairs = [(leader, row) for row in rivals] + list(combinations(rivals, 2))
    found = corrected([difference(first, second) for first, second in pairs])
    others = zip(rivals, found[: len(rivals)], strict=True)
    return Contrast(leader, {row.name: one for row, one in others if one is not None}, is_tie)
