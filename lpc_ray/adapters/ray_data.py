"""Induction on Ray Data: units of work → rows of the trace store, over a pool of induction actors.

An actor writes the finished rows of a batch itself, as one small Parquet part; what flows on through the dataset are
counts. Existing units are filtered out before a batch starts, so a retried batch does only what is missing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ray

from lpc_ray.adapters.engine_pool import EnginePool
from lpc_ray.config import InductionResources
from lpc_ray.induction import build_family
from lpc_ray.induction.base import Unit, run_units
from lpc_ray.prompting import with_system
from lpc_ray.records import Chunk, TraceRow
from lpc_ray.storage import Store
from lpc_ray.tokenizer import TextTokenizer
from lpc_ray.traces import Provenance, TraceStore, tokenise


@dataclass(frozen=True)
class InductionTask:
    """Everything an induction actor needs: one family with its settings and seed, the model, the pool, the store."""

    family: str
    settings: dict[str, Any]
    seed: int
    model: str
    revision: str | None
    system: str | None
    max_trace_tokens: int
    pool: EnginePool | None
    store: Store


class InductionActor:
    """Runs batches of units: many live generators, one engine call for all their pending asks."""

    def __init__(self, task: InductionTask):
        from transformers import AutoTokenizer

        from lpc_ray.embedded_model import resolve_model

        self.task = task
        self.family = build_family(task.family, task.settings)
        self.traces = TraceStore(task.store)
        self.text = TextTokenizer(task.model, task.revision)
        self.chat = AutoTokenizer.from_pretrained(resolve_model(task.model), revision=task.revision)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        done = self.traces.units()
        units = [unit for unit in map(_unit, _rows(batch)) if unit.id not in done]
        rows = self._induce(units)
        self.traces.append(rows)
        kept = sum(row.drop_reason is None for row in rows)
        return {"units": [len(units)], "kept": [kept], "dropped": [len(rows) - kept]}

    def _induce(self, units: list[Unit]) -> list[TraceRow]:
        task = self.task
        told = Provenance(task.family, task.seed, task.model, task.max_trace_tokens)
        affinity = units[0].chunk.digest if units else None
        finished = run_units(self.family, units, task.seed, lambda asks: self._generate(asks, affinity))
        return [
            tokenise(trace, unit.id, index, unit.chunk.document_digest, told, self._render, self.text.encode)
            for unit in units
            for index, trace in enumerate(finished[unit.id])
        ]

    def _generate(self, asks, affinity):
        assert self.task.pool is not None, f"family {self.task.family} asks a teacher, but says it needs none"
        return self.task.pool.generate(asks, affinity)

    def _render(self, messages, add_generation_prompt: bool) -> list[int]:
        return self.chat.apply_chat_template(
            with_system(messages, self.task.system),
            add_generation_prompt=add_generation_prompt,
            tokenize=True,
            return_dict=False,
        )


def induce(task: InductionTask, units: list[Unit], resources: InductionResources) -> Iterator[dict[str, int]]:
    """Run the units the store does not hold yet; yields counts (units, kept, dropped) as batches finish."""
    done = TraceStore(task.store).units()
    missing = [unit for unit in units if unit.id not in done]
    if not missing:
        return
    # Blocks are cut so that units sharing a chunk stay together and every actor gets work.
    num_batches = max(min(resources.actors, len(missing)), -(-len(missing) // resources.units_per_batch))
    dataset = ray.data.from_items([_row(unit) for unit in missing], override_num_blocks=num_batches).map_batches(
        InductionActor,
        fn_constructor_args=(task,),
        batch_size=None,
        num_cpus=resources.cpus,
        compute=ray.data.ActorPoolStrategy(size=min(resources.actors, num_batches)),
    )
    for batch in dataset.iter_batches(batch_size=1, prefetch_batches=0):
        yield {key: int(values.sum()) for key, values in batch.items()}


def _row(unit: Unit) -> dict[str, Any]:
    chunk = unit.chunk
    return {
        "id": unit.id,
        "index": unit.index,
        "document_digest": chunk.document_digest,
        "text": chunk.text,
        "description": chunk.description,
    }


def _rows(batch: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]


def _unit(row: dict[str, Any]) -> Unit:
    chunk = Chunk(
        document_digest=str(row["document_digest"]), text=str(row["text"]), description=str(row["description"])
    )
    return Unit(id=str(row["id"]), chunk=chunk, index=int(row["index"]))
