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
from ray.data.exceptions import UserCodeException
from ray.exceptions import RayError

from lpc_ray.adapters.engine_pool import EnginePool
from lpc_ray.config import InductionResources
from lpc_ray.errors import LPCError
from lpc_ray.inducer import Inducer, InductionTask
from lpc_ray.induction.base import Unit
from lpc_ray.records import Ask, Chunk, Reply
from lpc_ray.storage import Store
from lpc_ray.traces import TraceStore


@dataclass(frozen=True)
class SetToMake:
    """A trace set with the units that its store lacks."""

    id: str
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
    """Runs batches of units: many live generators, one engine call for all their pending asks."""

    def __init__(self, tasks: dict[str, InductionTask], stores: dict[str, Store], pool: EnginePool | None):
        self.name = ray.get_runtime_context().get_actor_id()
        self.inducers = {key: Inducer(task) for key, task in tasks.items()}
        self.stores = {key: TraceStore(store) for key, store in stores.items()}
        self.pool = pool

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        key, told = str(batch["traces"][0]), batch["units"][0]
        started = time.time()
        done = self.stores[key].units()
        units = [unit for unit in map(_unit, json.loads(told)) if unit.id not in done]
        rows = self.inducers[key].rows(units, self._generate)
        self.stores[key].append(rows)
        kept = sum(row.drop_reason is None for row in rows)
        finished = BatchDone(key, self.name, len(units), kept, len(rows) - kept, started, time.time())
        return {name: [value] for name, value in asdict(finished).items()}

    def _generate(self, asks: list[Ask]) -> list[Reply]:
        assert self.pool is not None, "a family asks a teacher, but says that it needs none"
        return self.pool.generate(asks, by_first_message=True)


def induce(work: list[SetToMake], pool: EnginePool | None, resources: InductionResources) -> Iterator[BatchDone]:
    """Make what is missing, trace set by trace set; yields as batches finish.

    pool: may be None when no family among them needs a teacher.
    Raises: what the family, the template or the engine refused, as the LPCError it was in the actor.
    """
    batches = [
        {"traces": one.id, "units": json.dumps([asdict(unit) for unit in batch])}
        for one in work
        for batch in cut_batches(one.units, resources.units_per_batch)
    ]
    if not batches:
        return
    tasks, stores = {one.id: one.task for one in work}, {one.id: one.store for one in work}
    dataset = ray.data.from_items(batches, override_num_blocks=len(batches)).map_batches(
        InductionActor,
        fn_constructor_args=(tasks, stores, pool),
        batch_size=1,
        num_cpus=resources.cpus,
        compute=ray.data.ActorPoolStrategy(size=min(resources.actors, len(batches))),
    )
    try:
        for row in dataset.iter_rows():
            yield BatchDone(**row)
    except (RayError, UserCodeException) as error:
        raise _refusal(error) or error from None


def _refusal(error: BaseException | None) -> LPCError | None:
    """The LPCError at the bottom of what Ray Data wrapped around it, if one is there."""
    while error is not None:
        cause = getattr(error, "cause", None) or error.__cause__
        if isinstance(error, LPCError) and not isinstance(cause, LPCError):
            return error
        error = cause
    return None


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
