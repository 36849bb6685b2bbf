"""Arms as the analysis shows them, from checkpoints, outcomes and traces."""

from dataclasses import fields
from typing import Any

from lpc_ray.artifacts.store import stored_manifest
from lpc_ray.errors import DataError
from lpc_ray.records import Tally
from lpc_ray.report.ledger.figures import OffSource, RecipeAxes
from lpc_ray.report.ledger.ledger import ArmRecord, StepScore, best_step
from lpc_ray.run.arms import Arm
from lpc_ray.run.checkpoints import ArmStore
from lpc_ray.run.costs import trace_costs
from lpc_ray.run.damage import damage_of
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.plan import Plan
from lpc_ray.serving.observed import observed_requests
from lpc_ray.verification.outcomes import OutcomeStore, Verifier

OFF_SOURCE_FIELDS = tuple(one.name for one in fields(OffSource) if one.name != "gate")


def verifier(plan: Plan, run: RunFolder) -> Verifier:
    recipe = plan.config.recipe
    return Verifier(
        benchmark=plan.benchmark,
        outcomes=OutcomeStore(run.outcomes(plan.protocol), plan.protocol),
        system=recipe.prompt.system,
        max_tokens=recipe.verification.max_tokens,
    )


def step_scores(run: RunFolder, arm: Arm, outcomes: OutcomeStore) -> tuple[StepScore, ...]:
    """The verified checkpoints of an arm, ascending."""
    scores = []
    for checkpoint in ArmStore(run.arm(arm.id)).checkpoints():
        verified = outcomes.get(checkpoint.digest, "tune")
        if verified is not None:
            tune = Tally.of(verified)
            scores.append(
                StepScore(
                    step=checkpoint.step,
                    loss=checkpoint.loss,
                    passed=tune.passed,
                    total=tune.total,
                    training_seconds=checkpoint.training_seconds,
                    digest=checkpoint.digest,
                    teacher_pass_seconds=checkpoint.teacher_pass_seconds,
                )
            )
    return tuple(scores)


def arm_record(plan: Plan, run: RunFolder, arm: Arm) -> ArmRecord:
    outcomes = OutcomeStore(run.outcomes(plan.protocol), plan.protocol)
    scores = step_scores(run, arm, outcomes)
    end, failure = ArmStore(run.arm(arm.id)).end(plan.protocol), ArmStore(run.arm(arm.id)).failure()
    if end is not None:
        scores = tuple(score for score in scores if score.step <= end["step"])
    best = best_step(scores)
    checkpoints = {checkpoint.step: checkpoint for checkpoint in ArmStore(run.arm(arm.id)).checkpoints()}
    held_out = (outcomes.get(best.digest, "held_out") or ()) if best else ()
    return ArmRecord(
        name=arm.name,
        arm_id=arm.id,
        **{axis.name: getattr(arm, axis.name) for axis in fields(RecipeAxes)},
        status=end["status"] if end is not None else failure.status if failure is not None else "unfinished",
        diagnosis=(failure.step, failure.why) if failure is not None else None,
        planned_steps=plan.config.recipe.training.steps,
        steps=scores,
        held_out=held_out,
        prefix_bytes=_prefix_bytes(run, best.digest) if best else 0,
        **trace_costs(run, arm, plan.config.recipe.training),
        target_tokens_seen=checkpoints[scores[-1].step].targets_seen if scores else 0,
        expected_requests=plan.config.report.expected_requests,
        observed_requests=_observed(plan).get(arm.name),
        **(_off_source_fields(plan, run, best.digest) if best else {}),
    )


def check_reportable(plan: Plan, run: RunFolder, arms: list[ArmRecord]) -> None:
    """Raises: DataError when a report of `arms` would be empty or untrue: none was begun, an ended one has no scores, or
    there are scores of another protocol only.
    """
    if not any(ArmStore(run.arm(arm.arm_id)).checkpoints() for arm in arms):
        others = len(run.arm_ids())
        raise DataError(
            f"{run}: got no checkpoint of this recipe's {len(arms)} arms (fingerprint {plan.fingerprint}), wanted at least "
            f"one; it holds {others} arm(s) of other recipes. Nothing was written"
        )
    others = [name for name in run.protocols() if name != plan.protocol]
    if others and not run.outcomes(plan.protocol).names():
        raise DataError(
            f"{run}: got scores of the protocols {', '.join(others)} only, wanted some of this config's {plan.protocol}: "
            "cases, system message, max_tokens, scorer or model differ. Nothing was written"
        )
    for arm in arms:
        if not arm.steps and ArmStore(run.arm(arm.arm_id)).end(plan.protocol) is not None:
            raise DataError(
                f"{run}: arm {arm.name} has ended, but its scores are missing from outcomes/{plan.protocol}"
            )


def _observed(plan: Plan) -> dict[str, int]:
    served = plan.config.report.served_metrics
    return {} if served is None else observed_requests(served)


def _off_source_fields(plan: Plan, run: RunFolder, digest: str) -> dict[str, Any]:
    """The ledger's columns on what a prefix does off its source, and the gate's verdict as the artifact has it."""
    damage = damage_of(plan, run, digest)
    fields: dict[str, Any] = {}
    if damage is not None:
        fields = {name: getattr(damage, name) for name in OFF_SOURCE_FIELDS}
    verification = stored_manifest(run.artifacts, digest).verification
    gate = verification.get("gate") if verification.get("protocol") == plan.protocol else None
    if gate:
        fields["gate"] = "passed" if gate["passed"] else "; ".join(gate["reasons"])
    return fields


def _prefix_bytes(run: RunFolder, digest: str) -> int:
    return stored_manifest(run.artifacts, digest).num_bytes
