"""The training group from outside: started once, renewed when an arm took it down, and watched from the driver."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from lpc_ray.adapters.ray.desk import TrainingDesk
from lpc_ray.config.job import TrainingResources
from lpc_ray.config.plugins import load_plugin
from lpc_ray.config.recipe import Recipe
from lpc_ray.errors import ClusterError
from lpc_ray.prefix.starts import Starts
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.origin import Origin

if TYPE_CHECKING:
    from lpc_ray.training.stepper import TrainingBackend


@dataclass(frozen=True)
class GroupSetup:
    """What every worker needs; picklable."""

    recipe: Recipe
    run: RunFolder
    starts: Starts
    resources: TrainingResources
    model: str
    origin: Origin


@dataclass
class TrainingGroup:
    """desk: what trials and workers talk to. ended: a reference that resolves when the group has ended, after
    `desk.close` or with its error.
    """

    desk: Any
    ended: ray.ObjectRef
    failure: str | None = None
    is_cancelled: bool = False

    def check(self) -> None:
        """Raises: ClusterError for a group that is dead."""
        if self.failure is not None:
            raise ClusterError(self.failure)

    def close(self) -> None:
        """Have the group end when its arms are done, and wait for it."""
        ray.get(self.desk.close.remote())
        ray.get(self.ended)

    def cancel(self) -> None:
        """End the group, whatever it does."""
        self.is_cancelled = True
        ray.cancel(self.ended, force=True)

    def watch(self, tell: Callable[[str], None]) -> None:
        """Wait for the group's end. If it died, tell the desk, and so all trials, and call `tell`."""
        try:
            ray.get(self.ended)
        except RayError as error:
            if self.is_cancelled or not ray.is_initialized():
                return
            self.failure = f"the training group died: {_root_cause(error)}"
            tell(self.failure)
            ray.get(self.desk.fail.remote(self.failure))


def start_training_group(setup: GroupSetup, name: str, tell: Callable[[str], None]) -> TrainingGroup:
    """A group that starts to load, and a thread that watches it; tell: called from there with one line if it dies."""
    desk = ray.remote(TrainingDesk).options(num_cpus=0, max_concurrency=1024, name=f"{name}-desk").remote()
    group = TrainingGroup(desk, ray.remote(_run_group).options(num_cpus=0, max_retries=0).remote(setup, desk, name))
    threading.Thread(target=group.watch, args=(tell,), daemon=True).start()
    return group


def training_backend(resources: TrainingResources) -> "TrainingBackend":
    """The backend that `cluster.training.backend` names; every module of `lpc_ray.adapters` with `new_stepper` is one."""
    module: Any = load_plugin("lpc_ray.adapters", "new_stepper", resources.backend, "cluster.training.backend")
    return module


def _run_group(setup: GroupSetup, desk: Any, name: str) -> None:
    """Groups, one after another: one that got an arm done before it died is followed by another."""
    while True:
        done = ray.get(desk.arms_done.remote())
        try:
            _trainer(setup, desk, name).fit()
            return
        except Exception:
            if ray.get(desk.arms_done.remote()) == done:
                raise


def _trainer(setup: GroupSetup, desk: Any, name: str) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    resources = setup.resources
    use_gpu = resources.gpus > 0
    per_worker: dict[str, float] = {"CPU": resources.cpus}
    if use_gpu:
        per_worker["GPU"] = resources.gpus
    return TorchTrainer(
        _worker,
        train_loop_config={"setup": setup, "desk": desk},
        scaling_config=ScalingConfig(num_workers=resources.workers, use_gpu=use_gpu, resources_per_worker=per_worker),
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo", timeout_s=resources.collective_timeout_seconds),
        run_config=RunConfig(
            name=name,
            storage_path=setup.run.scratch("ray_train"),
            failure_config=FailureConfig(max_failures=resources.max_failures),
        ),
    )


def _worker(config: dict[str, Any]) -> None:
    from lpc_ray.adapters.ray.training import train_arms  # what is heavy is imported where it runs

    train_arms(config)


def _root_cause(error: BaseException) -> str:
    """The last line of a Ray error, which quotes the worker's traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
