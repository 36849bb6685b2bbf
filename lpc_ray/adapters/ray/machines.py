"""What a run computes on: vLLM engines and a training group, each started when first needed or ahead of it."""

from functools import cached_property
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from lpc_ray.adapters.ray.engine_pool import EnginePool, start_engine_pool, stop_engines
from lpc_ray.adapters.ray.group import GroupSetup, TrainingGroup, start_training_group, training_backend
from lpc_ray.adapters.ray.tasks import publish_untrained
from lpc_ray.model.embedded import resolve_model
from lpc_ray.run.baselines import untrained
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.origin import origin_of
from lpc_ray.run.plan import Plan
from lpc_ray.terminal import Console

PATIENCE = 2  # seconds


class Machines:
    """The engine pool and the training group of one run, and the untrained prefixes that its model makes.

    name: of the engine replicas and the training desk, the same in a rerun of the plan
    """

    def __init__(self, plan: Plan, run: RunFolder, say: Console):
        self.name = f"lpc-{plan.config.name}-{plan.fingerprint[:8]}"
        self.model = resolve_model(plan.config.recipe.model.id)
        self._plan, self._run, self._say = plan, run, say
        self._reported_answered = 0
        self._reported_step = ("", 0)
        self._untrained: dict[tuple[str, int], ray.ObjectRef] = {}

    def start_ahead(self) -> None:
        """Begin to load everything at once while other stages work: start-up is mostly imports."""
        _ = self.starting_pool, self.training_group
        for initializer, size in untrained(self._plan):
            self.publish_untrained(initializer, size)

    def stop(self) -> None:
        """Stop the engines, where any were started; blocks for seconds at most. Ray's own processes end with the job."""
        started = self.__dict__.get("starting_pool")
        if started is not None and ray.is_initialized():
            stop_engines(started[1])

    @cached_property
    def pool(self) -> EnginePool:
        """The engine pool, started on first use and waited for."""
        pool, _, ready = self.starting_pool
        ray.get(ready)
        self._say("engine", "ready")
        return pool

    @cached_property
    def starting_pool(self) -> tuple[EnginePool, list, list]:
        """The engine pool, its replicas, and for each replica the reference of when it was ready (seconds since the epoch)."""
        replicas, recipe = self._plan.config.cluster.engine.replicas, self._plan.config.recipe
        self._say("engine", f"starting {replicas} vLLM engine(s) with {recipe.model.id}")
        return start_engine_pool(self.name, recipe, self._plan.config.cluster.engine)

    def news(self) -> tuple[str, str] | None:
        """Stage and text of what came out of the machines since the last time; None for nothing."""
        return (self._engine_news() or self._training_news()) if ray.is_initialized() else None

    def _training_news(self) -> tuple[str, str] | None:
        group = self.__dict__.get("training_group")
        if group is None:
            return None
        try:
            last = ray.get(group.desk.last_step.remote(), timeout=PATIENCE)
        except (GetTimeoutError, RayActorError):
            return None
        if last is None or last[:2] == self._reported_step:
            return None
        arm, step, loss = last
        self._reported_step = (arm, step)
        return "train", f"{arm} at step {step}/{self._plan.config.recipe.training.steps}, loss {loss:.3f}"

    def _engine_news(self) -> tuple[str, str] | None:
        """None before the engine is started and while it has nothing to do."""
        started = self.__dict__.get("starting_pool")
        if started is None:
            return None
        answered = started[0].answered(PATIENCE)
        if answered is None:
            return None if self._reported_answered else ("engine", "still loading")
        if answered == self._reported_answered:
            return None
        news = f"{answered} replies so far, {answered - self._reported_answered} since the last count"
        self._reported_answered = answered
        return "engine", news

    @cached_property
    def training_group(self) -> TrainingGroup:
        """The training group and its desk."""
        training = self._plan.config.cluster.training
        how = training_backend(training).describe(training)
        self._say("train", f"starting {training.workers} training worker(s), {how}")
        return start_training_group(self.group_setup(), self.name, lambda problem: self._say("train", problem))

    def check_training(self) -> None:
        """Raises: ClusterError for a training group that was started and has died."""
        group = self.__dict__.get("training_group")
        if group is not None:
            group.check()

    def publish_untrained(self, initializer: str, num_tokens: int) -> ray.ObjectRef:
        """The digest of an untrained prefix, when it is there; asked for once."""
        key = (initializer, num_tokens)
        if key not in self._untrained:
            self._untrained[key] = self.beside_training(publish_untrained).remote(
                self.group_setup(), initializer, num_tokens
            )
        return self._untrained[key]

    def beside_training(self, function: Any) -> Any:
        """`function` as a Ray task with the resources of a training worker."""
        training = self._plan.config.cluster.training
        return ray.remote(function).options(num_cpus=training.cpus, num_gpus=training.gpus)

    def group_setup(self) -> GroupSetup:
        return GroupSetup(
            recipe=self._plan.config.recipe,
            run=self._run,
            starts=self._plan.starts,
            resources=self._plan.config.cluster.training,
            model=self.model,
            origin=origin_of(self._plan),
        )
