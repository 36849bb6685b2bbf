"""The sweep: every open arm trained and verified under ASHA, and what is shown of it while it runs."""

import time

from lpc_ray.adapters.pipeline.context import RunContext
from lpc_ray.adapters.pipeline.pace import Pace
from lpc_ray.adapters.pipeline.stage import stage
from lpc_ray.adapters.ray.live_view import SweepGauges
from lpc_ray.adapters.ray.sweep import SweepWatcher, TrialSetup, sweep
from lpc_ray.artifacts.store import fetch
from lpc_ray.errors import LPCError
from lpc_ray.run.arms import Arm
from lpc_ray.run.checkpoints import ArmStore
from lpc_ray.terminal import clock


def start_ahead(context: RunContext) -> None:
    """Begin to load engine and trainer, and open tracking, where an arm is yet to be trained."""
    if context.open_arms():
        context.machines.start_ahead()
        _ = context.tracker


@stage(prepare=start_ahead)
def train_arms(context: RunContext) -> None:
    """Train and verify every arm that has not ended. An arm whose training fails ends alone, with a diagnosis.

    Raises: LPCError when a trial or the training group failed, or the training of every arm.
    """
    arms, open_arms = context.plan.arms, context.open_arms()
    if not open_arms:
        context.say("sweep", f"all {len(arms)} arms have ended")
        check_any_arm(context)
        return
    pool = context.machines.pool
    group = context.machines.training_group
    stopping, last_step = context.recipe.stopping, context.recipe.training.steps
    setup = TrialSetup(
        arms={arm.name: arm for arm in arms},
        run=context.run,
        verifier=context.verifier,
        pool=pool,
        desk=group.desk,
        first_decision=min(stopping.grace_steps, last_step),
        last_step=last_step,
        cache=context.cache,
    )
    gauges = SweepGauges(context.plan.config.name, [arm.name for arm in arms])
    news = SweepNews(context, open_arms, gauges)
    watcher = SweepWatcher(setup, news.result, news.ended)
    cases = sum(case.split == "tune" for case in context.plan.cases)
    with gauges.shown():
        errors = sweep(arms, setup, stopping, cases, watcher, context.machines.name)
    if errors:
        group.cancel()
        raise LPCError(f"{len(errors)} of {len(arms)} arms failed; the first: {errors[0]}")
    group.close()
    check_any_arm(context)


def check_any_arm(context: RunContext) -> None:
    """Raises: LPCError when every arm's training failed."""
    failures = {arm.name: ArmStore(context.run.arm(arm.id)).failure() for arm in context.plan.arms}
    first, failure = next(iter(failures.items()))
    if failure is not None and None not in failures.values():
        raise LPCError(
            f"none of {len(failures)} arms could be trained; the first, {first}, {failure.status} at step {failure.step}: "
            f"{failure.why}"
        )


class SweepNews:
    """Takes each verified step and each end of an arm to the terminal, MLflow and Prometheus."""

    def __init__(self, context: RunContext, open_arms: list[Arm], gauges: SweepGauges):
        self._context = context
        self._steps = context.recipe.training.steps
        self._pace = Pace([arm.id for arm in open_arms], self._steps)
        self._gauges = gauges

    def result(self, arm: Arm, result: dict) -> None:
        self._context.tracker.log_step(arm, result)
        self._gauges.result(arm.name, result)
        arms = self._context.plan.arms
        number = [known.id for known in arms].index(arm.id) + 1
        loss = "" if result["loss"] is None else f"loss {result['loss']:.3f}, "
        left = self._pace.left(arm.id, result["trained_step"], result["is_replayed"], time.monotonic())
        self._context.say(
            "sweep",
            f"arm {number}/{len(arms)} {arm.name} step {result['step']}/{self._steps}: {loss}"
            f"verified {result['passed']}/{result['total']}" + (f", ~{clock(left)} left" if left is not None else ""),
        )

    def ended(self, arm: Arm, end: dict) -> None:
        context = self._context
        self._pace.ended(arm.id)
        self._gauges.ended(arm.name, end["status"] if end["status"] in ("finished", "stopped") else "failed")
        best = context.best_step(arm)
        why = f": {end['why']}" if "why" in end else ""
        folder = str(fetch(context.run.artifacts, best.digest, context.cache)) if best else None
        context.tracker.end_arm(arm, end["status"], folder)
        context.say("sweep", f"{arm.name} {end['status']} at step {end['step']}{why}")
