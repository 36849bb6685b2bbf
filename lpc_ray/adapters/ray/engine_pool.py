"""A named pool of engine replicas on Ray: it teaches, verifies, and outlives whoever asks it."""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import ray.exceptions

from lpc_ray.asking import Engine
from lpc_ray.config.job import EngineResources
from lpc_ray.config.plugins import load_plugin
from lpc_ray.config.recipe import Recipe
from lpc_ray.model.embedded import resolve_model
from lpc_ray.records import Ask, Reply

STOP_SECONDS = 15


class EngineReplica:
    """One engine in one actor; concurrent callers share its batches.

    It starts on the first call, so that an actor that Ray has restarted serves the calls that Ray retries. When the
    engine's own processes have died, the actor follows them, and Ray makes a new one.
    """

    def __init__(self, new_engine: Callable[[], Engine]):
        self._engine = new_engine()
        self._starting = asyncio.Lock()
        self._ready_at: float | None = None
        self._is_stopped = False

    async def start(self) -> float:
        """Returns when it was ready, in seconds since the epoch."""
        async with self._starting:
            if self._ready_at is None:
                await self._engine.start()
                self._ready_at = time.time()
            return self._ready_at

    async def generate(self, asks: list[Ask]) -> list[Reply]:
        await self.start()
        try:
            return await self._engine.generate(asks)
        except Exception:
            if self._engine.is_dead() and not self._is_stopped:
                os._exit(1)
            raise

    async def stop(self) -> None:
        """End the engine's own processes, also while they start."""
        self._is_stopped = True
        await asyncio.to_thread(self._engine.stop)

    async def answered(self) -> int:
        """How many replies it has given."""
        return self._engine.answered


@dataclass(frozen=True)
class EnginePool:
    """The pool's name and size; small, picklable, and all that a client needs."""

    name: str
    replicas: int

    def generate(self, asks: list[Ask], by_first_message: bool = False) -> list[Reply]:
        """Replies in the order of `asks`; blocks.

        by_first_message: asks that open with the same message go to one replica, whose prefix cache then holds what they
        share; otherwise the asks are spread evenly. Raises: what the engine raises, and RayActorError when a replica died
        more often than it may be restarted.
        """
        slots = [
            _slot(ask.messages[0]["content"], self.replicas) if by_first_message and ask.messages else n % self.replicas
            for n, ask in enumerate(asks)
        ]
        numbers = {slot: [n for n, at in enumerate(slots) if at == slot] for slot in sorted(set(slots))}
        parts = [
            ray.get_actor(f"{self.name}-{slot}").generate.remote([asks[n] for n in mine])
            for slot, mine in numbers.items()
        ]
        replies: dict[int, Reply] = {}
        for mine, part in zip(numbers.values(), ray.get(parts), strict=True):
            replies.update(zip(mine, part, strict=True))
        return [replies[n] for n in range(len(asks))]

    def answered(self, patience: float) -> int | None:
        """How many replies all replicas have given; None when they do not say so within `patience` seconds."""
        counts = [ray.get_actor(f"{self.name}-{slot}").answered.remote() for slot in range(self.replicas)]
        try:
            return sum(ray.get(counts, timeout=patience))
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
            return None


def _slot(key: str, replicas: int) -> int:
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % replicas


def start_engine_pool(name: str, recipe: Recipe, resources: EngineResources) -> tuple[EnginePool, list, list]:
    """Create the replicas and begin loading; returns the pool, its actor handles (keep them: they own the actors), and
    references to wait for, each to the time since the epoch at which its replica was ready.
    """
    kind = load_plugin("lpc_ray.adapters", "new_engine", resources.kind, "cluster.engine.kind")
    new_engine = partial(kind.new_engine, resolve_model(recipe.model.id), recipe.model, recipe.prompt, resources)
    actors = [
        ray.remote(EngineReplica)
        .options(
            name=f"{name}-{slot}",
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            max_concurrency=1024,
            max_restarts=3,
            max_task_retries=3,
        )
        .remote(new_engine)
        for slot in range(resources.replicas)
    ]
    starts = [actor.start.remote() for actor in actors]  # pyright: ignore[reportFunctionMemberAccess]  # Ray wraps it
    return EnginePool(name, resources.replicas), actors, starts


def stop_engines(replicas: Sequence[Any]) -> None:
    """Stop the engines of the replicas, whatever they do; their actors end with the job. Blocks, up to `STOP_SECONDS`."""
    stops = [replica.stop.remote() for replica in replicas]
    ray.wait(stops, num_returns=len(stops), timeout=STOP_SECONDS)
