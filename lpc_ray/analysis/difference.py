"""Whether two rows of one run and task differ by more than noise: case by case where that is known, else by their counts."""

from dataclasses import dataclass
from typing import Literal

from lpc_ray.analysis.row import Row
from lpc_ray.analysis.significance import NOISE_P_VALUE, paired, unpaired


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
    told = paired(first.cases or {}, second.cases or {})
    if told is not None:
        return Difference(told.first_passed < told.second_passed, told.p_value, "McNemar")
    if first.score is None or second.score is None or not first.total or not second.total:
        return None
    p_value = unpaired((first.passed or 0, first.total), (second.passed or 0, second.total))
    return Difference(first.score < second.score, p_value, "Fisher")
