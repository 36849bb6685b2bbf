"""Quality against cost: which rows are beaten on every axis at once.

Two rows are ranked only when they belong to one run and one task and count placeholders alike (a row without a prefix has
none to count). The rule for a missing axis: a row that lacks one of the ranked axes can neither dominate nor be
dominated, is not on the frontier, and names what it lacks. (Comparing on the shared axes of each pair would let three rows
beat each other in a circle.) Expected and observed requests say how often a cost is paid, which is neither good nor bad:
they stand beside the axes, and `breakeven` uses them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lpc_ray.report.ledger.row import Convention, Row

COSTS = ("request_tokens", "prefix_tokens", "prefix_bytes", "offline_seconds")
AXES = ("score", *COSTS)


@dataclass(frozen=True, slots=True)
class ParetoRow:
    """`score` is to be maximised, the four costs minimised.

    offline_seconds: trace generation + teacher passes + training. missing: names of the unknown ranked axes, separated by
    spaces. dominated_by: the name of a row that is at least as good on every ranked axis and better on one; else empty.
    is_on_frontier and dominated_by: None where nothing is ranked.
    """

    name: str
    kind: str
    run: str | None
    task: str | None
    score: float | None
    request_tokens: float | None
    prefix_tokens: int | None
    prefix_bytes: int | None
    offline_seconds: float | None
    trace_generation_seconds: float | None
    teacher_pass_seconds: float | None
    training_seconds: float | None
    expected_requests: int | None
    observed_requests: int | None
    placeholders_counted: Convention
    missing: str = ""
    is_on_frontier: bool | None = False
    dominated_by: str | None = ""


def shared_axes(rows: Sequence[Row]) -> tuple[str, ...]:
    """The axes that every scored row knows: what a table with gaps can still be ranked by."""
    scored = [row for row in rows if row.score is not None]
    return tuple(axis for axis in AXES if all(getattr(row, axis) is not None for row in scored))


def pareto(rows: Sequence[Row], axes: Sequence[str] = AXES) -> list[ParetoRow]:
    """Every row, in the order given, with its place. Of several dominators a frontier row of best score is named.

    axes: the ranked ones, of `AXES`.
    """
    values = [tuple(_signed(row, axis) for axis in axes) for row in rows]
    beaten_by = [
        [
            other
            for other in range(len(rows))
            if _ranked(rows, values, other, at) and dominates(values[other], values[at])
        ]
        for at in range(len(rows))
    ]
    is_complete = [None not in known for known in values]
    return [
        ParetoRow(
            **{name: getattr(row, name) for name in ParetoRow.__dataclass_fields__ if hasattr(row, name)},
            missing=" ".join(axis for axis, value in zip(axes, known, strict=True) if value is None),
            is_on_frontier=complete and not beaten,
            dominated_by=rows[min(beaten, key=lambda other: (bool(beaten_by[other]), values[other]))].name
            if beaten
            else "",
        )
        for row, known, complete, beaten in zip(rows, values, is_complete, beaten_by, strict=True)
    ]


def unranked(places: Sequence[ParetoRow]) -> list[ParetoRow]:
    """The same rows without a place."""
    return [replace(place, is_on_frontier=None, dominated_by=None) for place in places]


def dominates(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether `one` is nowhere worse than `other` and somewhere better; both hold numbers, of which less is better."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def _ranked(rows: Sequence[Row], values: Sequence[tuple], one: int, other: int) -> bool:
    first, second = rows[one], rows[other]
    alike = first.placeholders_counted == second.placeholders_counted or 0 in (
        first.prefix_tokens,
        second.prefix_tokens,
    )
    same = (first.run, first.task) == (second.run, second.task)
    return same and alike and None not in values[one] and None not in values[other]


def _signed(row: Row, axis: str) -> float | None:
    """The axis as a cost: the score is negated."""
    value = getattr(row, axis)
    return -value if axis == "score" and value is not None else value
