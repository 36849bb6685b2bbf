"""Induction: the missing traces of every trace set, and what their quality is."""

import time
from collections.abc import Iterator

import ray
from ray.exceptions import RayError

from lpc_ray.adapters.pipeline.context import RunContext
from lpc_ray.adapters.pipeline.stage import stage
from lpc_ray.adapters.ray.induction import BatchDone, TraceWork, induce
from lpc_ray.errors import StorageError
from lpc_ray.induction.base import Unit
from lpc_ray.run.arms import TraceSet
from lpc_ray.run.trace_quality import add_induction_seconds, induction_reports, judge_induction
from lpc_ray.terminal import clock
from lpc_ray.traces.quality import printed
from lpc_ray.traces.store import TraceStore, Written

SECONDS_BETWEEN_LINES = 2
SECONDS_TO_ARRIVE = 60
Work = list[tuple[TraceSet, list[Unit]]]


@stage()
def make_traces(context: RunContext) -> None:
    """Make the missing traces of every trace set; those that need no teacher come first, while it starts.

    Raises: DataError for a teacher's trace set that costs fewer tokens than training is to have, StorageError when the
    store does not hold what was made, VerificationError when this machine could not verify what comes of it.
    """
    plan, run, say = context.plan, context.run, context.say
    plan.benchmark.check_runnable()
    sets = sorted(plan.trace_sets(), key=lambda one: plan.families[one.family].needs_teacher())
    wanted = [(one, plan.units(one.family, one.induction_seed)) for one in sets]
    work = [(one, missing) for one, units in wanted if (missing := _missing(context, one, units))]
    for one, units in work:
        say("induce", f"{one.family}: {len(units)} units to do")
    reported = _work_off(context, work) if work else {}
    for one, units in wanted:
        _check_arrived(context, one, units, reported.get(one.id, {}))
    for one in sets:
        judge_induction(plan, run, one)
        summary = TraceStore(run.traces(one.id)).summary()
        dropped = ", ".join(f"{count} {reason}" for reason, count in summary["dropped"].items())
        say("induce", f"{one.family}: {summary['rows']} traces" + (f", dropped: {dropped}" if dropped else ""))
        plan.check_teacher_tokens(one, summary["teacher_tokens"])


@stage(needs_ray=False)
def show_quality(context: RunContext) -> None:
    """Print the quality of every trace set."""
    for record in induction_reports(context.plan, context.run):
        print(printed(record["family"], record["quality"]), flush=True)


def _missing(context: RunContext, one: TraceSet, units: list[Unit]) -> list[Unit]:
    done = TraceStore(context.run.traces(one.id)).units()
    return [unit for unit in units if unit.id not in done]


def _check_arrived(context: RunContext, one: TraceSet, units: list[Unit], reported: dict[str, Written]) -> None:
    """Raises: StorageError unless the store holds all units, and of each the rows that were reported.

    A shared folder may show what another node wrote some time later.
    """
    here = f"node {ray.util.get_node_ip_address()}"
    deadline = time.monotonic() + (SECONDS_TO_ARRIVE if any(row.node != here for row in reported.values()) else 0)
    while True:
        try:
            return TraceStore(context.run.traces(one.id)).check_holds([unit.id for unit in units], reported)
        except StorageError:
            if time.monotonic() > deadline:
                raise
        time.sleep(SECONDS_BETWEEN_LINES)


def _work_off(context: RunContext, work: Work) -> dict[str, dict[str, Written]]:
    """Have the induction actors do the units; print progress and record what it costs.

    Returns: trace set id → unit → what its batch reports.
    """
    machines, families = context.machines, context.plan.families
    named = {one.id: one for one, _ in work}
    left = {one.id: len(units) for one, units in work}
    taught = {key: count for key, count in left.items() if families[named[key].family].needs_teacher()}
    pool = machines.starting_pool[0] if taught else None
    tasks = [
        TraceWork(one.id, context.plan.induction_task(one), context.run.traces(one.id), units) for one, units in work
    ]
    reported: dict[str, dict[str, Written]] = {key: {} for key in named}
    total, started, said, busy_until = sum(left.values()), time.monotonic(), 0.0, dict.fromkeys(named, 0.0)
    for batch in _or_engine_failure(context, induce(tasks, pool, context.cluster.induction), bool(taught)):
        machines.check_training()
        left[batch.traces] -= batch.units
        reported[batch.traces] |= {unit: Written(rows, batch.node) for unit, rows in batch.rows.items()}
        # Batches overlap in time; a trace set's cost is the time in which at least one of its batches was worked on,
        # and waiting for the engine to load is no part of it.
        ready = max(ray.get(machines.starting_pool[2])) if batch.traces in taught else 0.0
        seconds = max(0.0, batch.ended - max(batch.started, busy_until[batch.traces], ready))
        busy_until[batch.traces] = max(busy_until[batch.traces], batch.ended)
        add_induction_seconds(context.run, named[batch.traces], seconds)
        spent, todo = time.monotonic() - started, sum(left.values())
        if todo and spent - said >= SECONDS_BETWEEN_LINES:
            said = spent
            now = ", ".join(f"{named[key].family} {count}" for key, count in left.items() if count)
            # Units without a teacher cost next to nothing and say nothing of the time left.
            ahead = sum(left[key] for key in taught)
            done = sum(taught.values()) - ahead
            rest = f", ~{clock(spent / done * ahead)} left in this stage" if done else ""
            context.say("induce", f"{total - todo}/{total} units{rest} (to do: {now})")
    return reported


def _or_engine_failure(context: RunContext, batches: Iterator[BatchDone], taught: bool) -> Iterator[BatchDone]:
    """The batches; when they fail because no engine could start, its own error is the one to raise."""
    try:
        yield from batches
    except RayError:
        if taught:
            ray.get(context.machines.starting_pool[2])
        raise
