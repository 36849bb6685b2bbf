"""Verified score by optimizer step, and how many steps a given quality took."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lpc_ray.analysis.ledger import ArmRecord

THRESHOLDS = (0.25, 0.50, 0.60)


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
    """The first verified step at which an arm reached each threshold, or None; `last_step` is where it ended."""

    arm: str
    status: str
    last_step: int | None
    steps: tuple[int | None, ...]


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


def steps_to_quality(arms: Sequence[ArmRecord], thresholds: Sequence[float] = THRESHOLDS) -> list[StepsToQuality]:
    """One entry per arm. An arm that was stopped meets no threshold that it had not reached by then.

    thresholds: fractions of the tune cases.
    """
    return [
        StepsToQuality(
            arm=arm.name,
            status=arm.status,
            last_step=arm.steps[-1].step if arm.steps else None,
            steps=tuple(_first_step(arm, threshold) for threshold in thresholds),
        )
        for arm in arms
    ]


def _first_step(arm: ArmRecord, threshold: float) -> int | None:
    reached = (at.step for at in arm.steps if at.total and at.passed / at.total >= threshold)
    return next(reached, None)
