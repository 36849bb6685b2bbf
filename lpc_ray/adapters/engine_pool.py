"""A named pool of vLLM engine replicas on Ray: it teaches, verifies, and outlives whoever asks it."""

import hashlib
from dataclasses import dataclass

import ray

from lpc_ray.adapters.vllm_engine import EngineSettings, VLLMEngine
from lpc_ray.config import EngineResources, ModelRecipe
from lpc_ray.embedded_model import resolve_model
from lpc_ray.records import Ask, Reply


class EngineReplica:
    """One engine in one actor; concurrent callers share its batches."""

    def __init__(self, settings: EngineSettings):
        self._engine = VLLMEngine(settings)

    async def start(self) -> None:
        await self._engine.start()

    async def generate(self, asks: list[Ask]) -> list[Reply]:
        return await self._engine.generate(asks)


@dataclass(frozen=True)
class EnginePool:
    """The pool's name and size; small, picklable, and all that a client needs."""

    name: str
    replicas: int

    def generate(self, asks: list[Ask], affinity: str | None = None) -> list[Reply]:
        """Replies in the order of `asks`; blocks.

        affinity: asks with the same key go to one replica, whose prefix cache then holds what they share. Without a key
        the asks are spread over all replicas. Raises: what the engine raises, and RayActorError when a replica died.
        """
        if not asks:
            return []
        if affinity is not None:
            return ray.get(self._replica(_slot(affinity, self.replicas)).generate.remote(asks))
        count = min(self.replicas, len(asks))
        parts = [self._replica(slot).generate.remote(asks[slot::count]) for slot in range(count)]
        replies: list[Reply | None] = [None] * len(asks)
        for slot, part in enumerate(ray.get(parts)):
            replies[slot::count] = part
        return replies  # type: ignore[return-value]

    def _replica(self, slot: int):
        return ray.get_actor(f"{self.name}-{slot}")


def _slot(affinity: str, replicas: int) -> int:
    return int(hashlib.sha256(affinity.encode()).hexdigest(), 16) % replicas


def start_engine_pool(name: str, model: ModelRecipe, resources: EngineResources) -> tuple[EnginePool, list, list]:
    """Create the replicas and begin loading; returns the pool, its actor handles (keep them: they own the actors), and
    references to wait for.
    """
    settings = EngineSettings(
        model=resolve_model(model.id),
        revision=model.revision,
        dtype=model.dtype,
        max_model_len=resources.max_model_len,
        max_num_seqs=resources.max_num_seqs,
        kv_cache_gib=resources.kv_cache_gib,
        gpu_memory_fraction=resources.gpu_memory_fraction,
        tensor_parallel=resources.tensor_parallel,
        threads=resources.threads,
        extra=resources.extra,
    )
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
        .remote(settings)
        for slot in range(resources.replicas)
    ]
    return EnginePool(name, resources.replicas), actors, [actor.start.remote() for actor in actors]
