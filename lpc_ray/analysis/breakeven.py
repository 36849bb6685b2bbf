"""After how many requests a prefix has repaid what was spent on it before the first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from lpc_ray.analysis.row import Row
from lpc_ray.analysis.significance import NOISE_P_VALUE, unpaired

REFERENCES = ("full_document", "full_skill")


@dataclass(frozen=True, slots=True)
class BreakEven:
    """An arm against a reference that needs no training, in seconds on the machine that measured both.

    saved_seconds: per request, negative where the arm's request costs more. requests: the least number at which saved
    seconds cover the offline ones; None where that never happens or something is unknown, which `reason` names.
    is_repaid: by the expected requests, else by the observed ones; None where neither is known.
    """

    run: str | None
    task: str | None
    arm: str
    reference: str
    offline_seconds: float | None
    saved_seconds: float | None
    requests: int | None
    expected_requests: int | None
    observed_requests: int | None
    is_repaid: bool | None
    reason: str = ""


def break_even(rows: Sequence[Row], references: Sequence[str] = REFERENCES) -> list[BreakEven]:
    """One entry per arm and reference row of its run and task. An arm that scores less, beyond noise, repays nothing."""
    return [
        _against(arm, reference)
        for arm in rows
        if arm.kind == "arm"
        for reference in rows
        if reference.name in references and (reference.run, reference.task) == (arm.run, arm.task)
    ]


def _is_worse(arm: Row, reference: Row) -> bool:
    """Whether the arm's score is lower than the reference's by more than noise."""
    if None in (arm.score, reference.score) or not arm.total or not reference.total:
        return False
    p_value = unpaired((arm.passed or 0, arm.total), (reference.passed or 0, reference.total))
    return (arm.score or 0) < (reference.score or 0) and p_value < NOISE_P_VALUE


def _against(arm: Row, reference: Row) -> BreakEven:
    offline, spent, paid = arm.offline_seconds, arm.request_seconds, reference.request_seconds
    saved = None if spent is None or paid is None else paid - spent
    unknown = [
        name
        for name, value in (
            ("offline seconds", offline),
            ("seconds per request", spent),
            ("the reference's seconds per request", paid),
        )
        if value is None
    ]
    requests = None
    reason = f"unknown: {', '.join(unknown)}" if unknown else ""
    if offline is not None and saved is not None:
        if saved <= 0:
            reason = "never: a request is not cheaper"
        elif _is_worse(arm, reference):
            reason = f"never: it passed {arm.passed}/{arm.total}, {reference.name} {reference.passed}/{reference.total}"
        else:
            requests = math.ceil(Fraction(offline) / Fraction(saved))
    workload = arm.expected_requests if arm.expected_requests is not None else arm.observed_requests
    return BreakEven(
        run=arm.run,
        task=arm.task,
        arm=arm.name,
        reference=reference.name,
        offline_seconds=offline,
        saved_seconds=saved,
        requests=requests,
        expected_requests=arm.expected_requests,
        observed_requests=arm.observed_requests,
        is_repaid=None if workload is None or unknown else requests is not None and workload >= requests,
        reason=reason,
    )
