"""The cost and quality ledger: what a run hands in, and one row per arm and per baseline.

`StepScore`, `ArmRecord` and `BaselineRecord` are the input; `Row` is what every table, plot and file shows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from lpc_ray.errors import DataError
from lpc_ray.records import Outcome, Tally
from lpc_ray.report.ledger.figures import Costs, OffSource, RecipeAxes
from lpc_ray.report.ledger.row import Row, held_out_fields

DIAGNOSIS = ": "  # stands in a status between what happened and why
MADE_OFFLINE = ("trace_generation_seconds", "teacher_pass_seconds", "training_seconds", "teacher_tokens")


@dataclass(frozen=True, slots=True)
class StepScore:
    """A checkpoint verified on the tune cases.

    training_seconds, teacher_pass_seconds: spent since step 0, apart from each other, verification not included; None: not
    measured.
    """

    step: int
    loss: float | None
    passed: int
    total: int
    training_seconds: float
    digest: str
    teacher_pass_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class ArmRecord(RecipeAxes, Costs, OffSource):
    """One arm of the sweep, `steps` ascending. `held_out`: the outcomes of `best_step(steps)`; may be empty. `diagnosis`: at
    which step and why training failed, where it did.

    Raises: DataError when the steps are not strictly ascending.
    """

    name: str
    arm_id: str
    induction: str = field()  # which every arm has
    status: Literal["finished", "stopped", "unfinished", "diverged", "out of memory", "failed"]
    planned_steps: int
    steps: tuple[StepScore, ...]
    held_out: tuple[Outcome, ...]
    diagnosis: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        steps = [score.step for score in self.steps]
        if steps != sorted(set(steps)):
            raise DataError(f"arm {self.name}: got the verified steps {steps}, wanted each once and ascending")


@dataclass(frozen=True, slots=True)
class BaselineRecord:
    """What no arm of this sweep trained. `num_tokens`: of the prefix or of the truncated document. `costs`: of making it, as
    far as they are known; nothing was generated or trained for a prompt or an untrained prefix.

    name: no_context, full_document, truncated, text_prefill, the initializer of another untrained prefix, or the handle of
    an LPC that existed before.
    """

    name: str
    num_tokens: int
    prefix_bytes: int
    tune: tuple[Outcome, ...]
    held_out: tuple[Outcome, ...]
    costs: Mapping[str, Any] = field(default_factory=lambda: dict.fromkeys(MADE_OFFLINE, 0))


def best_step(steps: Sequence[StepScore]) -> StepScore | None:
    """The step that passed most tune cases, the earliest of equals; None when nothing was verified."""
    verified = [score for score in steps if score.total]
    return max(verified, key=lambda score: (score.passed, -score.step), default=None)


def best_artifact(arm: ArmRecord) -> tuple[str | None, int | None]:
    """(digest, step) of the artifact that answered the held-out cases."""
    best = best_step(arm.steps)
    return (best.digest, best.step) if best else (None, None)


def rows(
    arms: Sequence[ArmRecord], baselines: Sequence[BaselineRecord], run: str | None = None, task: str | None = None
) -> list[Row]:
    """Baselines first, then arms, each in the order given. run, task: of all of them.

    Baselines of one name and several sizes are distinguished by `-p<tokens>`.
    Raises: DataError when two rows would have one name.
    """
    sizes = Counter(baseline.name for baseline in baselines)
    found = [_baseline_row(baseline, sizes[baseline.name] > 1) for baseline in baselines]
    found += [_arm_row(arm) for arm in arms]
    twice = [name for name, count in Counter(row.name for row in found).items() if count > 1]
    if twice:
        raise DataError(f"ledger: got more than one row named {', '.join(twice)}, wanted every name once")
    return [replace(row, run=run, task=task) for row in found]


def _arm_row(arm: ArmRecord) -> Row:
    best = best_step(arm.steps)
    shared = {one.name: getattr(arm, one.name) for part in (RecipeAxes, Costs, OffSource) for one in fields(part)}
    if not arm.steps:
        shared["target_tokens_seen"] = None
    return Row(
        kind="arm",
        name=arm.name,
        status=_status(arm),
        best_step=best.step if best else None,
        tune_passed=best.passed if best else None,
        tune_total=best.total if best else None,
        placeholders_counted="no",
        teacher_pass_seconds=arm.steps[-1].teacher_pass_seconds if arm.steps else None,
        training_seconds=arm.steps[-1].training_seconds if arm.steps else None,
        digest=best.digest if best else None,
        **{**shared, "prefix_bytes": arm.prefix_bytes or None},
        **held_out_fields(arm.held_out),
    )


def _baseline_row(baseline: BaselineRecord, is_sized: bool) -> Row:
    tune = Tally.of(baseline.tune)
    return Row(
        kind="baseline",
        name=f"{baseline.name}-p{baseline.num_tokens}" if is_sized else baseline.name,
        status="measured" if baseline.held_out else "no held-out outcomes",
        num_tokens=baseline.num_tokens,
        tune_passed=tune.passed if tune.total else None,
        tune_total=tune.total or None,
        prefix_bytes=baseline.prefix_bytes,
        placeholders_counted="no",
        **{name: baseline.costs.get(name) for name in MADE_OFFLINE},
        **held_out_fields(baseline.held_out),
    )


def _status(arm: ArmRecord) -> str:
    """`finished`, `stopped at step 24 (verified 3/24)`, `unfinished at step 8` or `diverged at step 9: got loss nan …`."""
    if arm.status == "finished":
        return "finished"
    if arm.diagnosis is not None:
        return f"{arm.status} at step {arm.diagnosis[0]}{DIAGNOSIS}{arm.diagnosis[1]}"
    if not arm.steps:
        return f"{arm.status} before the first verification"
    last = arm.steps[-1]
    verified = f" (verified {last.passed}/{last.total})" if arm.status == "stopped" else ""
    return f"{arm.status} at step {last.step}{verified}"
