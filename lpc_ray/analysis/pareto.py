"""Quality against cost: which rows are beaten on every axis at once.

The rule for a missing axis: a row is compared only when all five axes are known. A row that lacks one can neither
dominate nor be dominated, is not on the frontier, and names what it lacks. (Comparing on the shared axes only would let
three rows beat each other in a circle.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lpc_ray.analysis.row import Row

COSTS = ("request_tokens", "prefix_tokens", "prefix_bytes", "offline_seconds")
AXES = ("score", *COSTS)


@dataclass(frozen=True, slots=True)
class ParetoRow:
    """`score` is to be maximised, the four costs minimised.

    prefix_tokens: 0 for a row that has no prefix (prefix_bytes 0), whatever stands in its prompt.
    offline_seconds: induction + training. missing: names of the unknown axes, separated by spaces.
    dominated_by: the name of a frontier row that is at least as good on every axis and better on one; else empty.
    """

    name: str
    kind: str
    score: float | None
    request_tokens: float | None
    prefix_tokens: int | None
    prefix_bytes: int | None
    offline_seconds: float | None
    placeholders_counted: str
    missing: str = ""
    is_on_frontier: bool = False
    dominated_by: str = ""


def pareto(rows: Sequence[Row]) -> list[ParetoRow]:
    """Every row, in the order given, with its place. Of several frontier dominators the best score is named."""
    axes = [_axes(row) for row in rows]
    comparable = [values for values in axes if None not in values]
    frontier = [
        (row.name, values)
        for row, values in zip(rows, axes, strict=True)
        if None not in values and not any(dominates(other, values) for other in comparable)
    ]
    frontier.sort(key=lambda member: member[1][0], reverse=True)
    names = {name for name, _ in frontier}
    return [
        ParetoRow(
            name=row.name,
            kind=row.kind,
            **dict(zip(AXES, values, strict=True)),
            placeholders_counted=row.placeholders_counted,
            missing=" ".join(axis for axis, value in zip(AXES, values, strict=True) if value is None),
            is_on_frontier=row.name in names,
            dominated_by=_dominator(values, frontier),
        )
        for row, values in zip(rows, axes, strict=True)
    ]


def dominates(one: tuple, other: tuple) -> bool:
    """Whether `one` (score, then costs; all known) is nowhere worse than `other` and somewhere better."""
    nowhere_worse = one[0] >= other[0] and all(a <= b for a, b in zip(one[1:], other[1:], strict=True))
    return nowhere_worse and one != other


def _dominator(values: tuple, frontier: Sequence[tuple[str, tuple]]) -> str:
    if None in values:
        return ""
    return next((name for name, member in frontier if dominates(member, values)), "")


def _axes(row: Row) -> tuple:
    induction, training = row.induction_seconds, row.training_seconds
    return (
        row.score,
        row.request_tokens,
        0 if row.prefix_bytes == 0 else row.num_tokens,
        row.prefix_bytes,
        None if induction is None or training is None else induction + training,
    )
