"""Induction on Ray Data: units of work → rows of the trace store, over a pool of induction actors.

An actor writes the finished rows of a batch itself, as one small Parquet part; what flows on through the dataset are
counts. Existing units are filtered out before a batch starts, so a retried batch does only what is missing.
"""

from collections.abc import Iterator
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


class InductionActor:
    """Runs batches of units: many live generators, one engine call for all their pending asks.

    pool: None for a family that asks nobody.
    """

    def __init__(self, task: InductionTask, pool: EnginePool | None, store: Store):
        self._inducer = Inducer(task)
        self._pool = pool
        self._traces = TraceStore(store)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        done = self._traces.units()
        units = [unit for unit in map(_unit, _rows(batch)) if unit.id not in done]
        affinity = units[0].chunk.digest if units else None
        rows = self._inducer.rows(units, lambda asks: self._generate(asks, affinity))
        self._traces.append(rows)
        kept = sum(row.drop_reason is None for row in rows)
        return {"units": [len(units)], "kept": [kept], "dropped": [len(rows) - kept]}

    def _generate(self, asks: list[Ask], affinity: str | None) -> list[Reply]:
        assert self._pool is not None, f"family {self._inducer.task.family} asks a teacher, but says it needs none"
        return self._pool.generate(asks, affinity)


def induce(
    task: InductionTask, pool: EnginePool | None, store: Store, units: list[Unit], resources: InductionResources
) -> Iterator[dict[str, int]]:
    """Run the units the store does not hold yet; yields counts (units, kept, dropped) as batches finish.

    Raises: what the family, the template or the engine refused, as the LPCError it was in the actor.
    """
    done = TraceStore(store).units()
    missing = [unit for unit in units if unit.id not in done]
    if not missing:
        return
    # Blocks are cut so that units sharing a chunk stay together and every actor gets work.
    num_batches = max(min(resources.actors, len(missing)), -(-len(missing) // resources.units_per_batch))
    dataset = ray.data.from_items([_row(unit) for unit in missing], override_num_blocks=num_batches).map_batches(
        InductionActor,
        fn_constructor_args=(task, pool, store),
        batch_size=None,
        num_cpus=resources.cpus,
        compute=ray.data.ActorPoolStrategy(size=min(resources.actors, num_batches)),
    )
    try:
        for batch in dataset.iter_batches(batch_size=1, prefetch_batches=0):
            yield {key: int(values.sum()) for key, values in batch.items()}
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
