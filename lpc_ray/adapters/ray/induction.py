"""Induction on Ray Data: units of work → rows of the trace stores, over a pool of induction actors.

One dataset carries the batches of every trace set, so that the actors start once and families without a teacher work
while the engine still loads. An actor writes the finished rows of a batch itself, as one small Parquet part; what flows
on through the dataset are counts. Existing units are left out before a batch starts, so a retried batch does only what
is missing.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import ray

from lpc_ray import errors
from lpc_ray.adapters.ray.engine_pool import EnginePool
from lpc_ray.config.job import InductionResources
from lpc_ray.induction.base import Unit
from lpc_ray.records import Ask, Chunk, Reply
from lpc_ray.storage import Store
from lpc_ray.traces.inducer import Inducer, InductionTask
from lpc_ray.traces.store import TraceStore


@dataclass(frozen=True)
class TraceWork:
    """One trace set to make: its id, how, where to, and the units it lacks."""

    traces: str
    task: InductionTask
    store: Store
    units: list[Unit]


@dataclass(frozen=True)
class BatchDone:
    """What became of one batch, and in which actor. `started` and `ended`: seconds since the epoch."""

    traces: str
    actor: str
    units: int
    kept: int
    dropped: int
    started: float
    ended: float


class InductionActor:
    """Runs batches of units: many live generators, one engine call for all their pending asks.

    homes: trace set id → how it is made and where it is stored. pool: None where no family asks anybody.
    """

    def __init__(self, homes: dict[str, tuple[InductionTask, Store]], pool: EnginePool | None):
        self._name = str(ray.get_runtime_context().get_actor_id())
        self._homes = homes
        self._pool = pool
        self._inducers: dict[str, Inducer] = {}

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        [key], [told] = batch["traces"], batch["units"]
        task, folder = self._homes[key]
        if key not in self._inducers:
            self._inducers[key] = Inducer(task)
        started = time.time()
        store = TraceStore(folder)
        done = store.units()
        units = [unit for unit in map(_unit, json.loads(told)) if unit.id not in done]
        rows, refused_as, refused_why = [], "", ""
        try:
            rows = self._inducers[key].rows(units, self._generate)
            store.append(rows)
        except errors.LPCError as error:
            # As a result: Ray Data would wrap the error in one of its own and lose it on the way.
            refusal = getattr(error, "cause", error)
            refused_as, refused_why = type(refusal).__name__, str(refusal)
        kept = sum(row.drop_reason is None for row in rows)
        finished = BatchDone(str(key), self._name, len(units), kept, len(rows) - kept, started, time.time())
        columns = {**asdict(finished), "refused_as": refused_as, "refused_why": refused_why}
        return {name: [value] for name, value in columns.items()}

    def _generate(self, asks: list[Ask]) -> list[Reply]:
        assert self._pool is not None, "a family asks a teacher, but says that it needs none"
        return self._pool.generate(asks, by_first_message=True)


def induce(work: list[TraceWork], pool: EnginePool | None, resources: InductionResources) -> Iterator[BatchDone]:
    """Run the units given, trace set by trace set; yields as batches finish.

    pool: may be None when no family among them needs a teacher.
    Raises: what the family, the template or the engine refused, as the LPCError it was in the actor.
    """
    batches = [
        {"traces": one.traces, "units": json.dumps([asdict(unit) for unit in batch])}
        for one in work
        for batch in cut_batches(one.units, resources.units_per_batch)
    ]
    if not batches:
        return
    dataset = ray.data.from_items(batches, override_num_blocks=len(batches)).map_batches(
        InductionActor,
        fn_constructor_args=({one.traces: (one.task, one.store) for one in work}, pool),
        batch_size=1,
        num_cpus=resources.cpus,
        compute=ray.data.ActorPoolStrategy(size=min(resources.actors, len(batches))),
    )
    for row in dataset.iter_rows():
        kind, message = row.pop("refused_as"), row.pop("refused_why")
        if kind:
            raise getattr(errors, kind)(message)
        yield BatchDone(**row)


def cut_batches(units: list[Unit], size: int) -> list[list[Unit]]:
    """Batches of at most `size` units, in order; the units of a chunk stay together unless they alone exceed a batch."""
    groups: list[list[Unit]] = []
    for unit in units:
        if groups and groups[-1][0].chunk == unit.chunk and len(groups[-1]) < size:
            groups[-1].append(unit)
        else:
            groups.append([unit])
    batches: list[list[Unit]] = []
    for group in groups:
        if batches and len(batches[-1]) + len(group) <= size:
            batches[-1].extend(group)
        else:
            batches.append(group)
    return batches


def _unit(row: dict[str, Any]) -> Unit:
    return Unit(id=row["id"], chunk=Chunk(**row["chunk"]), index=row["index"])
