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

from lpc_ray.adapters.engine_pool import EnginePool
from lpc_ray.config import InductionResources
from lpc_ray.induction import build_family
from lpc_ray.induction.base import Unit, run_units
from lpc_ray.prompting import with_system
from lpc_ray.records import Ask, Chunk, Reply, TraceRow
from lpc_ray.storage import Store
from lpc_ray.tokenizer import TextTokenizer
from lpc_ray.traces import Provenance, TraceStore, tokenise


@dataclass(frozen=True)
class InductionTask:
    """What an induction actor needs to make one trace set: the family, its settings and seed, the model, the store."""

    family: str
    settings: dict[str, Any]
    seed: int
    model: str
    revision: str | None
    system: str | None
    max_trace_tokens: int
    store: Store


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

    def __init__(self, tasks: dict[str, InductionTask], pool: EnginePool | None):
        from transformers import AutoTokenizer

        from lpc_ray.embedded_model import resolve_model

        self.name = ray.get_runtime_context().get_actor_id()
        self.tasks = tasks
        self.pool = pool
        any_task = next(iter(tasks.values()))
        self.text = TextTokenizer(any_task.model, any_task.revision)
        self.chat = AutoTokenizer.from_pretrained(resolve_model(any_task.model), revision=any_task.revision)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        [key], [told] = batch["traces"], batch["units"]
        started = time.time()
        task = self.tasks[str(key)]
        store = TraceStore(task.store)
        done = store.units()
        units = [unit for unit in map(_unit, json.loads(told)) if unit.id not in done]
        rows = self._induce(task, units)
        store.append(rows)
        kept = sum(row.drop_reason is None for row in rows)
        finished = BatchDone(str(key), self.name, len(units), kept, len(rows) - kept, started, time.time())
        return {name: [value] for name, value in asdict(finished).items()}

    def _induce(self, task: InductionTask, units: list[Unit]) -> list[TraceRow]:
        told = Provenance(task.family, task.seed, task.model, task.max_trace_tokens)
        finished = run_units(build_family(task.family, task.settings), units, task.seed, self._generate)

        def render(messages, add_generation_prompt: bool) -> list[int]:
            return self.chat.apply_chat_template(
                with_system(messages, task.system),
                add_generation_prompt=add_generation_prompt,
                tokenize=True,
                return_dict=False,
            )

        return [
            tokenise(trace, unit.id, index, unit.chunk.document_digest, told, render, self.text.encode)
            for unit in units
            for index, trace in enumerate(finished[unit.id])
        ]

    def _generate(self, asks: list[Ask]) -> list[Reply]:
        assert self.pool is not None, "a family asks a teacher, but says that it needs none"
        return self.pool.generate(asks, by_first_message=True)


def induce(
    work: list[tuple[str, InductionTask, list[Unit]]], pool: EnginePool | None, resources: InductionResources
) -> Iterator[BatchDone]:
    """Run the units given, trace set by trace set; yields as batches finish.

    work: (trace set id, its task, the units it lacks). pool: may be None when no family among them needs a teacher.
    """
    batches = [
        {"traces": key, "units": json.dumps([asdict(unit) for unit in batch])}
        for key, _, units in work
        for batch in cut_batches(units, resources.units_per_batch)
    ]
    if not batches:
        return
    dataset = ray.data.from_items(batches, override_num_blocks=len(batches)).map_batches(
        InductionActor,
        fn_constructor_args=({key: task for key, task, _ in work}, pool),
        batch_size=1,
        num_cpus=resources.cpus,
        compute=ray.data.ActorPoolStrategy(size=min(resources.actors, len(batches))),
    )
    for row in dataset.iter_rows():
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
