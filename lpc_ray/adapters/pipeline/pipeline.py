"""The arrow on Ray: induction → baselines → sweep → held-out verification → report, each stage resumable.

A stage does what the run's store does not hold yet; a run that is complete needs neither engine nor trainer.
"""

from collections.abc import Callable

import ray

from lpc_ray.adapters.pipeline.context import RunContext
from lpc_ray.adapters.pipeline.induce import make_traces, show_quality
from lpc_ray.adapters.pipeline.report import report
from lpc_ray.adapters.pipeline.train import train_arms
from lpc_ray.adapters.pipeline.verify import gate_arms, verify_baselines, verify_held_out
from lpc_ray.adapters.ray.machines import connect
from lpc_ray.config.job import JobConfig
from lpc_ray.errors import DataError
from lpc_ray.run.baselines import baseline_records
from lpc_ray.run.plan import Plan, make_plan
from lpc_ray.run.records import arm_record, verifier
from lpc_ray.storage import Store
from lpc_ray.suite.suite import TaskResults
from lpc_ray.terminal import Console

STAGES: dict[str, Callable[[RunContext], None]] = {
    "induce": make_traces,
    "show_induction": show_quality,
    "baselines": verify_baselines,
    "sweep": train_arms,
    "held_out": verify_held_out,
    "gate": gate_arms,
    "report": report,
}
SECONDS_OF_SILENCE = 20


def run_stages(plan: Plan, run: Store, *stages: str) -> None:
    """Run the named `STAGES` in turn; only a report alone needs no Ray."""
    console = Console()
    if stages == ("report",) and not run.names():
        raise DataError(f"{run}: got an empty or missing folder, wanted a run")
    context = RunContext(plan, run, console)
    if stages != ("report",):
        connect(plan)
    with console.kept_alive(context.machines.news, SECONDS_OF_SILENCE):
        if "sweep" in stages and context.open_arms():
            context.machines.start_ahead()
            _ = context.tracker
        for stage in stages:
            STAGES[stage](context)


def carry_out(job: JobConfig, run: Store, stages: tuple[str, ...], unsandboxed: bool) -> TaskResults:
    """One task of several, on a Ray of its own: the next task's engine finds the machine free."""
    plan = make_plan(job, unsandboxed)
    try:
        run_stages(plan, run, *stages)
    finally:
        ray.shutdown()
    outcomes = verifier(plan, run).outcomes
    return TaskResults(
        source_tokens=len(plan.source_ids),
        arms=[arm_record(plan, run, arm) for arm in plan.arms],
        baselines=baseline_records(plan, run),
        tune=lambda digest: outcomes.get(digest, "tune") or (),
    )
