"""One initializer against another, document by document: by the best seed and by the mean over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from lpc_ray.report.ledger.row import Row
from lpc_ray.report.significance import NOISE_P_VALUE, holm
from lpc_ray.report.statistics.difference import Difference, difference
from lpc_ray.report.statistics.seed_spread import ended_early, shared_artifacts
from lpc_ray.report.statistics.two_sources import gap, measured, p_value, scatter

Winner = Literal["tie", "first", "second"]


@dataclass(frozen=True, slots=True)
class DocumentVerdict:
    """`first` and `second` are initializers; scores are checks passed of `total`, deltas second minus first.

    first_shared, second_shared: `seeds.shared_artifacts` of the side's seeds.
    first_mean, second_mean, mean_delta, by_mean: over seeds; None where only the best of the seeds is known.
    bests: how the two best arms differ (of equals the first), the cases alone varying. It takes no account of the tries
    behind a best score, so that it can show that a difference is noise, and no more.
    p_value: of the two initializers having one mean, seeds and cases both varying (`two_sources`), corrected for the table's
    documents (Holm); None where a side has fewer than two seeds or only counts are known.
    """

    task: str | None
    source_tokens: int | None
    first: str
    second: str
    total: int
    first_best: int
    second_best: int
    first_seeds: int | None
    second_seeds: int | None
    first_shared: str
    second_shared: str
    first_mean: float | None
    second_mean: float | None
    mean_delta: float | None
    by_best: Winner
    by_mean: Winner | None
    bests: Difference | None
    p_value: float | None

    @property
    def is_noise(self) -> bool | None:
        """None where it cannot be told: the bests differ by more than the cases explain, and the seeds are too few."""
        if self.p_value is not None:
            return self.p_value >= NOISE_P_VALUE
        return True if self.bests is not None and self.bests.is_noise else None

    @property
    def delta(self) -> int:
        return self.second_best - self.first_best


def per_document(rows: Sequence[Row], first: str = "first_k", second: str = "sci") -> list[DocumentVerdict]:
    """One verdict per task and recipe that has scored rows of both initializers over one denominator.

    A recipe is all that names an arm but initializer and seeds; arms that ended early are left out. rows: of one run.
    """
    groups: dict[tuple, dict[str, list[Row]]] = {}
    for row in rows:
        if (
            row.score is not None
            and row.passed is not None
            and not ended_early(row)
            and row.initializer in (first, second)
        ):
            recipe = (row.task, row.induction, row.objective, row.num_tokens, row.total)
            groups.setdefault(recipe, {}).setdefault(row.initializer, []).append(row)
    found = [
        _verdict(sides[first], sides[second], first, second)
        for sides in groups.values()
        if {first, second} <= set(sides)
    ]
    p_values = iter(holm([one.p_value for one in found if one.p_value is not None]))
    return [one if one.p_value is None else replace(one, p_value=next(p_values)) for one in found]


def _verdict(one: Sequence[Row], other: Sequence[Row], first: str, second: str) -> DocumentVerdict:
    total = one[0].total or 0
    best, best_other = (max(side, key=lambda row: row.passed or 0) for side in (one, other))
    bests = [best.passed or 0, best_other.passed or 0]
    first_mean, second_mean = _mean(one), _mean(other)
    delta = None if first_mean is None or second_mean is None else second_mean - first_mean
    return DocumentVerdict(
        task=one[0].task,
        source_tokens=one[0].source_tokens,
        first=first,
        second=second,
        total=total,
        first_best=bests[0],
        second_best=bests[1],
        first_seeds=_seeds(one),
        second_seeds=_seeds(other),
        first_shared=_shared(one),
        second_shared=_shared(other),
        first_mean=None if first_mean is None else float(first_mean),
        second_mean=None if second_mean is None else float(second_mean),
        mean_delta=None if delta is None else float(delta),
        by_best=_winner(bests[1] - bests[0]),
        by_mean=None if delta is None else _winner(delta),
        bests=difference(best, best_other),
        p_value=_over_seeds(one, other),
    )


def _over_seeds(one: Sequence[Row], other: Sequence[Row]) -> float | None:
    answers = [[row.cases or {} for row in side] for side in (one, other)]
    common = sorted(set.intersection(*(set(cases) for side in answers for cases in side)))
    if not common or min(len(side) for side in answers) < 2:
        return None
    first, second = (
        measured(np.array([[float(cases[case]) for case in common] for cases in side])) for side in answers
    )
    return float(p_value(gap(first, second, scatter([first, second])), 2))


def _seeds(side: Sequence[Row]) -> int | None:
    return None if any(row.is_best_of_several for row in side) else len(side)


def _shared(side: Sequence[Row]) -> str:
    return shared_artifacts([(row.digest, row.best_step) for row in side])


def _mean(side: Sequence[Row]) -> Fraction | None:
    return None if _seeds(side) is None else Fraction(sum(row.passed or 0 for row in side), len(side))


def _winner(delta: Fraction | int) -> Winner:
    return "tie" if delta == 0 else "second" if delta > 0 else "first"
