"""Induction on Ray Data: units of work → rows of the trace stores, over a pool of induction actors.

One dataset carries the batches of every trace set, so that the actors start once and families without a teacher work
while the engine still loads. An actor writes the finished rows of a batch itself, as one small Parquet part; what flows
on through the dataset are counts. Existing units are left out before a batch starts, so a retried batch does only what
is missing.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
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
from lpc_ray.traces.store import SHARED, TraceStore


@dataclass(frozen=True)
class TraceWork:
    """One trace set to make: its id, how, where to, and the units it lacks."""

    traces: str
    task: InductionTask
    store: Store
    units: list[Unit]


@dataclass(frozen=True)
class BatchDone:
    """What became of one batch of `units` units, in which actor, on which node.

    rows: unit → how many rows were written, dropped ones included; units that an earlier try has stored are left out.
    started, ended: seconds since the epoch.
    """

    traces: str
    actor: str
    node: str
    units: int
    rows: dict[str, int]
    started: float
    ended: float


class InductionActor:
    """Runs batches of units: many live generators, one engine call for all their pending asks.

    homes: trace set id → how it is made, where it is stored, and the mark by which that store is known to be the driver's.
    pool: None where no family asks anybody.
    """

    def __init__(self, homes: dict[str, tuple[InductionTask, Store, str]], pool: EnginePool | None):
        self._name = ray.get_runtime_context().get_actor_id() or ""
        self._node = f"node {ray.util.get_node_ip_address()}"
        self._homes = homes
        self._pool = pool
        self._opened: dict[str, tuple[Inducer, TraceStore]] = {}

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        [key], [encoded] = batch["traces"], batch["units"]
        started, units = time.time(), [_unit(row) for row in json.loads(encoded)]
        written, refused_as, refused_why = Counter(), "", ""
        try:
            inducer, store = self._open(str(key))
            done = store.units()
            rows = inducer.rows([unit for unit in units if unit.id not in done], self._generate)
            store.append(rows)
            written = Counter(row.unit for row in rows)
        except errors.LPCError as error:
            # As a result: Ray Data would wrap the error in one of its own and lose it on the way.
            refusal = getattr(error, "cause", error)
            refused_as, refused_why = type(refusal).__name__, str(refusal)
        finished = BatchDone(str(key), self._name, self._node, len(units), dict(written), started, time.time())
        columns = {
            **asdict(finished),
            "rows": json.dumps(written),
            "refused_as": refused_as,
            "refused_why": refused_why,
        }
        return {name: [value] for name, value in columns.items()}

    def _open(self, key: str) -> tuple[Inducer, TraceStore]:
        """Raises: StorageError where this node's store is not the driver's."""
        if key not in self._opened:
            task, folder, mark = self._homes[key]
            if not folder.exists(mark):
                raise errors.StorageError(f"traces {folder}: {self._node} sees another folder than this job. {SHARED}")
            self._opened[key] = Inducer(task), TraceStore(folder)
        return self._opened[key]

    def _generate(self, asks: list[Ask]) -> list[Reply]:
        assert self._pool is not None, "a family asks a teacher, but says that it needs none"
        return self._pool.generate(asks, by_first_message=True)


def induce(work: list[TraceWork], pool: EnginePool | None, resources: InductionResources) -> Iterator[BatchDone]:
    """Run the units given, trace set by trace set; yields as batches finish.

    pool: may be None when no family among them needs a teacher.
    Raises: what the family, the template or the engine refused, as the LPCError it was in the actor; StorageError when an
    actor's node does not see the stores given.
    """
    batches = [
        {"traces": one.traces, "units": json.dumps([asdict(unit) for unit in batch])}
        for one in work
        for batch in cut_batches(one.units, resources.units_per_batch)
    ]
    if not batches:
        return
    with ExitStack() as marks:
        homes = {one.traces: (one.task, one.store, marks.enter_context(one.store.marked())) for one in work}
        yield from _worked_off(batches, homes, pool, resources)


def _worked_off(
    batches: list[dict[str, str]],
    homes: dict[str, tuple[InductionTask, Store, str]],
    pool: EnginePool | None,
    resources: InductionResources,
) -> Iterator[BatchDone]:
    dataset = ray.data.from_items(batches, override_num_blocks=len(batches)).map_batches(
        InductionActor,
        fn_constructor_args=(homes, pool),
        batch_size=1,
        num_cpus=resources.cpus,
        compute=ray.data.ActorPoolStrategy(size=min(resources.actors, len(batches))),
    )
    for row in dataset.iter_rows():
        kind, message = row.pop("refused_as"), row.pop("refused_why")
        if kind:
            raise getattr(errors, kind)(message)
        yield BatchDone(**{**row, "rows": json.loads(row["rows"])})


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
