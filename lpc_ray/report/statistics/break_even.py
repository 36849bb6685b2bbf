"""After how many requests a prefix has repaid what was spent on it before the first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lpc_ray.config.shares import as_written
from lpc_ray.report.ledger.row import Row
from lpc_ray.report.statistics.difference import Difference, corrected, difference

REFERENCES = ("full_document", "full_skill")


@dataclass(frozen=True, slots=True)
class BreakEven:
    """An arm against a reference that needs no training, in seconds on the machine that measured both.

    saved_seconds: per request, negative where the arm's request costs more. requests: the least number at which saved
    seconds cover the offline ones; None where that never happens or something is unknown, which `reason` names.
    p_value: of the two scores being equal, by the test that `test` names and corrected for the table's comparisons (Holm); None
    where one is unknown.
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
    p_value: float | None = None
    test: Literal["McNemar", "Fisher"] | None = None
    reason: str = ""


def break_even(rows: Sequence[Row], references: Sequence[str] = REFERENCES) -> list[BreakEven]:
    """One entry per arm and reference row of its run and task. An arm that scores less, beyond noise, repays nothing."""
    pairs = [
        (arm, reference)
        for arm in rows
        if arm.kind == "arm"
        for reference in rows
        if reference.name in references and (reference.run, reference.task) == (arm.run, arm.task)
    ]
    scores = corrected([difference(arm, reference) for arm, reference in pairs])
    return [_against(arm, reference, found) for (arm, reference), found in zip(pairs, scores, strict=True)]


def _against(arm: Row, reference: Row, scores: Difference | None) -> BreakEven:
    offline, spent, paid = arm.offline_seconds, arm.request_seconds, reference.request_seconds
    saved = None if spent is None or paid is None else as_written(paid) - as_written(spent)
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
        elif scores and scores.is_lower and not scores.is_noise:
            reason = f"never: it passed {arm.passed}/{arm.total}, {reference.name} {reference.passed}/{reference.total}"
        else:
            requests = math.ceil(as_written(offline) / saved)
    workload = arm.expected_requests if arm.expected_requests is not None else arm.observed_requests
    return BreakEven(
        run=arm.run,
        task=arm.task,
        arm=arm.name,
        reference=reference.name,
        offline_seconds=offline,
        saved_seconds=None if saved is None else float(saved),
        requests=requests,
        expected_requests=arm.expected_requests,
        observed_requests=arm.observed_requests,
        is_repaid=None if workload is None or unknown else requests is not None and workload >= requests,
        p_value=scores.p_value if scores else None,
        test=scores.test if scores else None,
        reason=reason,
    )
