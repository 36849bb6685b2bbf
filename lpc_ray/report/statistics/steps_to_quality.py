"""Verified score by optimizer step, and how many steps a given quality took."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from lpc_ray.config.shares import THRESHOLDS, Threshold, parse_share
from lpc_ray.report.ledger.ledger import ArmRecord
from lpc_ray.report.results.curves import Curve, FirstStep, MeasuredCurve


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


@dataclass(frozen=True, slots=True)
class StepsToQuality:
    """The first verified step at which an arm reached each threshold: None where it did not, "unknown" where not stated."""

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

    thresholds: fractions of the tune cases, as 0.5, `50%` or `12/19`.
    """
    wanted = [parse_share(threshold) for threshold in thresholds]
    return [
        StepsToQuality(line.name, tuple([line.first_step(share) for share in wanted]), line.best, line.ended)
        for line in lines
    ]
