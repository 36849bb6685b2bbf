"""Verified score by optimizer step, and how many steps a given quality took."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol

from lpc_ray.analysis.ledger import ArmRecord
from lpc_ray.errors import ConfigError, DataError

Threshold = float | str
THRESHOLDS: tuple[Threshold, ...] = (0.25, 0.50, 0.60)
UNKNOWN = "unknown"
FirstStep = int | None | Literal["unknown"]


@dataclass(frozen=True, slots=True)
class ConvergenceRow:
    """One verified checkpoint. `score` is a fraction of the tune cases; a diverged (non-finite) loss is None."""

    arm: str
    step: int
    loss: float | None
    passed: int
    total: int
    score: float | None
    training_seconds: float


class Curve(Protocol):
    """What steps-to-quality needs of an arm: `MeasuredCurve` and `ToldCurve` are two."""

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
class ToldCurve:
    """A curve of which only the first steps to some qualities, and the best score, were told.

    reached: quality → the first verified step with at least that score, None where none had it.
    Raises: DataError where these contradict each other or `best`.
    """

    name: str
    best: Fraction
    reached: dict[Fraction, int | None]
    ended: str = "finished"
    induction: str | None = None
    initializer: str | None = None
    initializer_seed: int | None = None

    def __post_init__(self) -> None:
        told = [self.reached[quality] for quality in sorted(self.reached)]
        for quality, step in self.reached.items():
            if (step is None) is not (quality > self.best):
                raise DataError(
                    f"curve {self.name}: got step {step} for {quality}, which its best, {self.best}, denies"
                )
        steps = [step for step in told if step is not None]
        if steps != sorted(steps):
            raise DataError(f"curve {self.name}: got a higher score at an earlier step than a lower one: {told}")

    def first_step(self, quality: Fraction) -> FirstStep:
        """Known where it was told, or lies between two qualities that were reached at one step."""
        if quality > self.best:
            return None
        above = min((told for told in self.reached if told >= quality and self.reached[told] is not None), default=None)
        below = max((told for told in self.reached if told <= quality), default=None)
        if above is None or (above != quality and (below is None or self.reached[below] != self.reached[above])):
            return UNKNOWN
        return self.reached[above]


@dataclass(frozen=True, slots=True)
class StepsToQuality:
    """The first verified step at which an arm reached each threshold: None where it did not, "unknown" where untold."""

    arm: str
    steps: tuple[FirstStep, ...]
    best: Fraction | None
    ended: str


def convergence(arms: Sequence[ArmRecord]) -> list[ConvergenceRow]:
    """Every verified checkpoint, arm by arm, steps ascending."""
    return [
        ConvergenceRow(
            arm=arm.name,
            step=at.step,
            loss=at.loss if at.loss is not None and math.isfinite(at.loss) else None,
            passed=at.passed,
            total=at.total,
            score=at.passed / at.total if at.total else None,
            training_seconds=at.training_seconds,
        )
        for arm in arms
        for at in arm.steps
    ]


def curves(arms: Iterable[ArmRecord]) -> list[MeasuredCurve]:
    return [
        MeasuredCurve(
            name=arm.name,
            ended=f"{arm.status} at step {arm.steps[-1].step}" if arm.steps else arm.status,
            points=tuple((at.step, at.passed, at.total) for at in arm.steps),
        )
        for arm in arms
    ]


def steps_to_quality(lines: Sequence[Curve], thresholds: Sequence[Threshold] = THRESHOLDS) -> list[StepsToQuality]:
    """One entry per curve. An arm that was stopped meets no threshold that it had not reached by then.

    thresholds: fractions of the tune cases, as 0.5 or as `12/19`.
    """
    wanted = [quality(threshold) for threshold in thresholds]
    return [StepsToQuality(line.name, tuple(map(line.first_step, wanted)), line.best, line.ended) for line in lines]


def fastest(lines: Sequence[StepsToQuality], at: int) -> list[str]:
    """The names of the lines that reached threshold number `at` at the earliest known step."""
    steps = {line.arm: step for line in lines if isinstance(step := line.steps[at], int)}
    return [name for name, step in steps.items() if step == min(steps.values())]


def quality(threshold: Threshold) -> Fraction:
    """Exactly what is written: 0.6 is 3/5. Raises: ConfigError unless it lies above 0 and at most at 1."""
    try:
        value = Fraction(str(threshold).replace(" ", ""))
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"threshold: got {threshold!r}, wanted a fraction such as 0.5 or 12/19") from error
    if not 0 < value <= 1:
        raise ConfigError(f"threshold: got {threshold!r}, wanted a fraction above 0 and at most 1")
    return value
