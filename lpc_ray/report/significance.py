"""What a handful of cases can show: the interval of one score, and the exact test of two on the same cases."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import binomtest, fisher_exact

from lpc_ray.errors import DataError
from lpc_ray.records import SCORED, Outcome

NOISE_P_VALUE = 0.05


def wilson(passed: int, total: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of passed / total, as two fractions.

    Raises: DataError unless 0 <= passed <= total and total > 0.
    """
    if not 0 <= passed <= total or total == 0:
        raise DataError(f"wilson interval: got {passed} passed of {total}, wanted 0 <= passed <= total and total > 0")
    interval = binomtest(passed, total).proportion_ci(confidence_level=0.95, method="wilson")
    return float(interval.low), float(interval.high)


@functools.cache
def unpaired(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Fisher's exact two-sided p value of two (passed, total), where it is not known which cases each passed."""
    table = [[passed, total - passed] for passed, total in (first, second)]
    result: Any = fisher_exact(table)
    return float(result.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """P values after Holm's step-down correction for their number, in the order given."""
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=lambda number: p_values[number])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = highest
    return corrected


@dataclass(frozen=True, slots=True)
class Paired:
    """Two answerers on the cases that both have a pass or fail for. Counts are cases; p_value is two-sided."""

    cases: int
    first_passed: int
    second_passed: int
    first_only: int
    second_only: int
    p_value: float

    @property
    def is_noise(self) -> bool:
        return self.p_value >= NOISE_P_VALUE


def passes(outcomes: Sequence[Outcome]) -> dict[str, bool]:
    """Case → whether it passed, of the cases that were scored."""
    return {outcome.case_id: outcome.verdict == "pass" for outcome in outcomes if outcome.verdict in SCORED}


def paired(first: Mapping[str, bool], second: Mapping[str, bool]) -> Paired | None:
    """The exact McNemar test: a binomial test on the cases that exactly one of the two passed (`passes`).

    Returns None when no case was scored for both.
    """
    both = [(passed, second[case]) for case, passed in first.items() if case in second]
    if not both:
        return None
    first_only, second_only = both.count((True, False)), both.count((False, True))
    discordant = first_only + second_only
    return Paired(
        cases=len(both),
        first_passed=sum(a for a, _ in both),
        second_passed=sum(b for _, b in both),
        first_only=first_only,
        second_only=second_only,
        p_value=_even(first_only, discordant),
    )


@functools.cache
def _even(first_only: int, discordant: int) -> float:
    return float(binomtest(first_only, discordant, 0.5).pvalue) if discordant else 1.0
