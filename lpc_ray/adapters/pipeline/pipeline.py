"""A run of stages on Ray, such as traces → baselines → sweep → held-out verification → report, each of them resumable.

A stage does what the run's store does not hold yet; a run that is complete needs neither engine nor trainer.
"""

from collections.abc import Sequence

from lpc_ray.adapters.pipeline.context import RunContext
from lpc_ray.adapters.pipeline.stage import Stage
from lpc_ray.adapters.ray.cluster import check_cluster, connect, leave
from lpc_ray.adapters.segments import Segments
from lpc_ray.config.job import JobConfig
from lpc_ray.errors import DataError
from lpc_ray.run.baselines import baseline_records
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.plan import Plan, make_plan
from lpc_ray.run.records import arm_record, verifier
from lpc_ray.storage import Store
from lpc_ray.suite.suite import TaskResults
from lpc_ray.terminal import Console, repeated, uninterrupted

SECONDS_OF_SILENCE = 20
_LOOK_SECONDS = 1


def run_stages(plan: Plan, run: RunFolder, stages: Sequence[Stage]) -> None:
    """Call the stages in turn, on Ray unless none of them needs it. However they end, engines and Ray are stopped.

    Raises: DataError for stages that only read, of a run that holds nothing; what the stages raise.
    """
    console = Console()
    needs_ray = any(stage.needs_ray for stage in stages)
    if not needs_ray and not run.store.names():
        raise DataError(f"{run}: got an empty or missing folder, wanted a run")
    if needs_ray:
        check_cluster("cluster.address", plan.config.cluster.address)
    context, segments = RunContext(plan, run, console), Segments()
    try:
        if needs_ray:
            connect(plan)
        news = console.kept_alive(context.machines.news, SECONDS_OF_SILENCE)
        with news, repeated(segments.look, _LOOK_SECONDS):
            for stage in stages:
                if stage.prepare is not None:
                    stage.prepare(context)
            for stage in stages:
                stage(context)
    finally:
        with uninterrupted():
            segments.look()
            context.machines.stop()
            leave()
            segments.sweep()


def carry_out(job: JobConfig, store: Store, stages: Sequence[Stage], unsandboxed: bool) -> TaskResults:
    """One task of several, on a Ray of its own: the next task's engine finds the machine free."""
    plan, run = make_plan(job, unsandboxed), RunFolder(store)
    run_stages(plan, run, stages)
    outcomes = verifier(plan, run).outcomes
    return TaskResults(
        source_tokens=len(plan.source_ids),
        arms=[arm_record(plan, run, arm) for arm in plan.arms],
        baselines=baseline_records(plan, run),
        tune=lambda digest: outcomes.get(digest, "tune") or (),
    )
