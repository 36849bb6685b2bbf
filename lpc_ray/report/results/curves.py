"""The score of an arm by optimizer step, as it was measured or as a table states it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, Protocol

from lpc_ray.errors import DataError
from lpc_ray.report.results.entry import CELL
from lpc_ray.report.results.fields import shown
from lpc_ray.report.results.schema import CurveTable, Point, StatedCurveRow

UNKNOWN: Literal["unknown"] = "unknown"
FirstStep = int | None | Literal["unknown"]


class Curve(Protocol):
    """What steps-to-quality needs of an arm: `MeasuredCurve` and `StatedCurve` are two."""

    @property
    def name(self) -> str: ...
    @property
    def ended(self) -> str: ...
    @property
    def best(self) -> Fraction | None: ...
    def first_step(self, quality: Fraction) -> FirstStep: ...


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Every verified checkpoint of an arm as (step, passed, total), steps ascending."""

    name: str
    ended: str
    points: tuple[tuple[int, int, int], ...]

    @property
    def best(self) -> Fraction | None:
        return max((Fraction(passed, total) for _, passed, total in self.points if total), default=None)

    def first_step(self, quality: Fraction) -> FirstStep:
        return next((step for step, passed, total in self.points if total and Fraction(passed, total) >= quality), None)


@dataclass(frozen=True, slots=True)
class StatedCurve:
    """A curve of which only the first steps to some qualities, and the best score, are stated.

    reached: quality → the first verified step with at least that score, None where none had it.
    Raises: DataError where these contradict each other or `best`.
    """

    name: str
    best: Fraction
    reached: dict[Fraction, int | None]
    ended: str = "not stated"
    induction: str | None = None
    initializer: str | None = None
    initializer_seed: int | None = None

    def __post_init__(self) -> None:
        steps_by_quality = [self.reached[quality] for quality in sorted(self.reached)]
        for quality, step in self.reached.items():
            if (step is None) is not (quality > self.best):
                raise DataError(
                    f"curve {self.name}: got step {step} for {quality}, which its best, {self.best}, denies"
                )
        steps = [step for step in steps_by_quality if step is not None]
        if steps != sorted(steps):
            raise DataError(
                f"curve {self.name}: got a higher score at an earlier step than a lower one: {steps_by_quality}"
            )

    def first_step(self, quality: Fraction) -> FirstStep:
        """Known where it is stated, or lies between two qualities that were reached at one step."""
        if quality > self.best:
            return None
        above = min(
            (stated for stated in self.reached if stated >= quality and self.reached[stated] is not None), default=None
        )
        below = max((stated for stated in self.reached if stated <= quality), default=None)
        if above is None or (above != quality and (below is None or self.reached[below] != self.reached[above])):
            return UNKNOWN
        return self.reached[above]


def stated_curves(tables: Sequence[CurveTable], where: str) -> list[StatedCurve]:
    """One per arm; tables that state the same arm are merged. Raises: DataError where they disagree."""
    arms: dict[str, StatedCurveRow] = {}
    reached: dict[str, dict[str, int | None]] = {}
    for entry in (entry for table in tables for entry in table.rows):
        if arms.setdefault(entry.arm, entry).best != entry.best:
            raise DataError(f"{where}: got two best scores for {entry.arm}, wanted one")
        known = reached.setdefault(entry.arm, {})
        for cell, step in entry.reached.items():
            if known.setdefault(cell, step) != step:
                raise DataError(f"{where}: got two steps to {cell} for {entry.arm}, wanted one")
    try:
        return [
            StatedCurve(
                name=name,
                best=_share(arm.best),
                reached={_share(cell): step for cell, step in reached[name].items()},
                induction=arm.induction,
                initializer=arm.initializer,
                initializer_seed=arm.initializer_seed,
            )
            for name, arm in arms.items()
        ]
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def measured_curves(points: Sequence[Point], ended: Mapping[str, str], where: str) -> list[MeasuredCurve]:
    """Curves that a file holds point by point. Raises: DataError for points that cannot be.

    ended: curve → how it ended, also of one without a point.
    """
    found: dict[str, list[tuple[int, int, int]]] = {name: [] for name in ended}
    for point in points:
        if point.passed > point.total:
            at = f"{where}, convergence of {shown(point.arm)}, step {point.step}"
            raise DataError(f"{at}: got {point.passed} of {point.total}, wanted passed <= total")
        found.setdefault(point.arm, []).append((point.step, point.passed, point.total))
    return [MeasuredCurve(arm, ended.get(arm, UNKNOWN), _points(arm, at, where)) for arm, at in found.items()]


def written_curves(curves: Iterable[MeasuredCurve | StatedCurve]) -> dict[str, Any]:
    """`curves`, `convergence` and `ended` of a `result_file.StatedRun`, from which the same curves are read."""
    stated: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    ended: dict[str, str] = {}
    for curve in curves:
        if isinstance(curve, StatedCurve):
            reached = {_cell(quality): step for quality, step in curve.reached.items()}
            start = {name: getattr(curve, name) for name in ("induction", "initializer", "initializer_seed")}
            stated.append({"arm": curve.name, "reached": reached, "best": _cell(curve.best), **start})
        else:
            ended[curve.name] = curve.ended
            for step, passed, total in curve.points:
                points.append({"arm": curve.name, "step": step, "passed": passed, "total": total})
    return {"curves": [{"rows": stated}] if stated else [], "convergence": points, "ended": ended}


def merged_curves(curves: Iterable[MeasuredCurve | StatedCurve], where: str) -> tuple[MeasuredCurve | StatedCurve, ...]:
    """The curves of several files of one run, each once. Raises: DataError where two of one arm disagree."""
    found: dict[str, MeasuredCurve | StatedCurve] = {}
    for curve in curves:
        known = found.setdefault(curve.name, curve)
        if isinstance(known, MeasuredCurve) and isinstance(curve, MeasuredCurve):
            found[curve.name] = replace(known, points=_points(curve.name, (*known.points, *curve.points), where))
        elif known != curve:
            raise DataError(f"{where}: got two curves of {shown(curve.name)} that differ, wanted one")
    return tuple(found.values())


def _points(arm: str, points: Iterable[tuple[int, int, int]], where: str) -> tuple[tuple[int, int, int], ...]:
    """Each step once, ascending."""
    known: dict[int, tuple[int, int]] = {}
    for step, *score in sorted(set(points)):
        passed, total = score
        if known.setdefault(step, (passed, total)) != (passed, total):
            first, second = (f"{one[0]}/{one[1]}" for one in (known[step], (passed, total)))
            raise DataError(f"{where}: got {first} and {second} for {shown(arm)} at step {step}, wanted one")
    return tuple((step, *score) for step, score in known.items())


def _cell(share: Fraction) -> str:
    return f"{share.numerator} / {share.denominator}"


def _share(cell: str) -> Fraction:
    matched = CELL.fullmatch(cell.strip())
    if matched is None or not int(matched.group(2)) or int(matched.group(1)) > int(matched.group(2)):
        raise DataError(f"got {shown(cell)}, wanted `passed / total`, at most all of them")
    return Fraction(int(matched.group(1)), int(matched.group(2)))
