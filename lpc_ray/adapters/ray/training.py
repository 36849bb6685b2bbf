"""The training group: Ray Train workers that hold the frozen backbone and train one arm after another.

Arms are enrolled at a desk, a small actor between the Tune trials and the workers. At a checkpoint the workers publish
the artifact, save the state to resume from, report to the desk and wait for its word, so that training sleeps while the
engine verifies on the same cores. A worker that died is replaced and resumes the arm from its last checkpoint.
"""

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
import torch

from lpc_ray.adapters.ray.desk import TrainingDesk
from lpc_ray.config.job import TrainingResources
from lpc_ray.config.plugins import load_plugin
from lpc_ray.config.recipe import Recipe
from lpc_ray.prefix.starts import Starts
from lpc_ray.run.arms import Arm
from lpc_ray.run.checkpoints import ArmStore, Checkpoint
from lpc_ray.run.costs import measured, trace_costs
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


def start_training_group(setup: GroupSetup, name: str) -> tuple[Any, Any]:
    """The desk and a reference that resolves when the group has ended (after `desk.close`, or with its error)."""
    desk = ray.remote(TrainingDesk).options(num_cpus=0, max_concurrency=1024, name=f"{name}-desk").remote()
    group = ray.remote(_run_group).options(num_cpus=0, max_retries=0).remote(setup, desk, name)
    return desk, group


def _run_group(setup: GroupSetup, desk: Any, name: str) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    resources = setup.resources
    use_gpu = resources.gpus > 0
    per_worker: dict[str, float] = {"CPU": resources.cpus}
    if use_gpu:
        per_worker["GPU"] = resources.gpus
    trainer = TorchTrainer(
        _worker,
        train_loop_config={"setup": setup, "desk": desk},
        scaling_config=ScalingConfig(num_workers=resources.workers, use_gpu=use_gpu, resources_per_worker=per_worker),
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
        run_config=RunConfig(
            name=name,
            storage_path=setup.run.scratch("ray_train"),
            failure_config=FailureConfig(max_failures=resources.max_failures),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:
        ray.get(desk.fail.remote(f"the training group failed: {_root_cause(error)}"))
        raise


def _root_cause(error: BaseException) -> str:
    """The last line of a Ray Train error, which quotes the worker's traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _worker(config: dict[str, Any]) -> None:
    """The train function: the backbone once, then arm after arm until the desk closes."""
    setup, desk = config["setup"], config["desk"]
    torch.set_num_threads(setup.resources.threads)
    rank = torch.distributed.get_rank()
    load = partial(load_backbone, setup.model, setup.recipe.model.revision, setup.recipe.model.dtype)
    backbone = load()
    backend = training_backend(setup.resources)
    backend.prepare()
    while True:
        arm = _agreed(ray.get(desk.next_arm.remote()) if rank == 0 else None)
        if arm is None:
            return
        error = None
        try:
            _train_arm(setup, desk, arm, backbone, backend)
        except ValueError as problem:  # the user's to solve, and no other arm's business
            error = str(problem)
        if rank == 0:
            ray.get(desk.finish.remote(arm.id, error))
        if backend.shards_backbone(setup.resources):
            backbone = load()


def training_backend(resources: TrainingResources) -> "TrainingBackend":
    """The backend that `cluster.training.backend` names; every module of `lpc_ray.adapters` with `new_stepper` is one."""
    module: Any = load_plugin("lpc_ray.adapters", "new_stepper", resources.backend, "cluster.training.backend")
    return module


def load_backbone(model: str, revision: str | None, dtype: str):
    """The frozen model, prefix-attached, on this worker's device."""
    from transformers import AutoModelForCausalLM

    from lpc_ray.prefix.attention import attach

    backbone = AutoModelForCausalLM.from_pretrained(
        model, revision=revision, dtype=getattr(torch, dtype), trust_remote_code=False
    )
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
        backbone = backbone.to(device)  # pyright: ignore[reportArgumentType]  # a decorator hides its first parameter
    return attach(backbone)


def _train_arm(setup: GroupSetup, desk: Any, arm: Arm, backbone: Any, backend: "TrainingBackend") -> None:
    from lpc_ray.model.embedded import prefix_cache
    from lpc_ray.model.identity import model_identity
    from lpc_ray.prefix.attention import Prefix
    from lpc_ray.traces.store import TraceStore
    from lpc_ray.training.learner import PrefixLearner
    from lpc_ray.training.loop import Progress, train
    from lpc_ray.training.objectives.base import rows_for

    recipe, training, arms = setup.recipe, setup.recipe.training, ArmStore(setup.run.arm(arm.id))
    traces = TraceStore(setup.run.traces(arm.traces))
    identity = model_identity(setup.model, recipe.model.revision)
    general = TraceStore(setup.run.traces(arm.general_traces)) if arm.general_traces else None
    rows = rows_for(arm.objective, traces.rows(training.teacher_tokens), training)
    general_rows = rows_for(arm.objective, general.rows(), training) if general else []
    start = setup.starts.initialize(
        arm.initializer, backbone, identity, arm.num_tokens, arm.initializer_seed, recipe.prefix, prefix_cache()
    )
    saved = arms.load_state()
    tensors, counters = saved if saved is not None else ({"keys": start.keys, "values": start.values}, {})
    progress = Progress(**{name: _counter(name, value) for name, value in counters.items()})
    if training.gradient_checkpointing:
        backbone.gradient_checkpointing_enable()
        backbone.train()
    prefix = Prefix(tensors["keys"], tensors["values"], recipe.prefix.frozen_tokens).to(backbone.device)
    shard = backend.shards_backbone(setup.resources)
    learner = PrefixLearner(backbone, prefix, arm.objective, training, shard_backbone=shard)
    stepper = backend.new_stepper(learner, training, setup.resources)
    if saved is not None:
        stepper.restore_moments(tensors, progress.step)
    publishing = _Publishing(
        setup=setup,
        desk=desk,
        arm=arm,
        identity=identity,
        trace_costs=trace_costs(setup.run, arm, training),
        start=start.record,
        provenance={
            "induction": arm.induction,
            "induction_seed": arm.induction_seed,
            "traces": traces.digest(training.teacher_tokens),
            **({"general_traces": general.digest()} if general else {}),
            "objective": arm.objective,
            "training_seed": arm.seed,
            "arm": arm.id,
        },
    )

    def note(now: Progress) -> None:
        if stepper.rank == 0:
            desk.note_step.remote(arm.name, now.step, now.loss)

    try:
        if progress.step and not publishing(stepper, progress):
            return
        train(stepper, rows, training, arm.seed, progress, lambda now: publishing(stepper, now), general_rows, note)
    finally:
        stepper.close()


def _counter(name: str, value: float) -> Any:
    if value != value:  # NaN stands for "not yet"
        return None
    return int(value) if name in ("step", "targets_seen", "tokens_seen") else value


@dataclass
class _Publishing:
    """At a checkpoint: artifact, then state, then the checkpoint's record, then the desk. Each step may be repeated."""

    setup: GroupSetup
    desk: Any
    arm: Arm
    identity: Any
    trace_costs: dict[str, Any]
    start: dict[str, Any]
    provenance: dict[str, Any]

    def __call__(self, stepper, progress) -> bool:
        from lpc_ray.artifacts.store import publish

        state = stepper.state()  # every rank takes part
        if stepper.rank != 0:
            return _agreed(None)
        run, recipe = self.setup.run, self.setup.recipe
        manifest = publish(
            run.artifacts,
            state["keys"],
            state["values"],
            self.identity,
            recipe.prefix.frozen_tokens,
            **self._description(progress),
        )
        checkpoint = Checkpoint(
            step=progress.step,
            digest=manifest.digest,
            loss=progress.loss,
            grad_norm=progress.grad_norm,
            targets_seen=progress.targets_seen,
            tokens_seen=progress.tokens_seen,
            training_seconds=progress.training_seconds,
            teacher_pass_seconds=progress.teacher_pass_seconds,
        )
        arms = ArmStore(run.arm(self.arm.id))
        counters = asdict(progress)
        del counters["losses"]
        arms.save_state(state, {name: float("nan") if value is None else value for name, value in counters.items()})
        arms.add_checkpoint(checkpoint)
        return _agreed(ray.get(self.desk.report.remote(self.arm.id, checkpoint)))

    def _description(self, progress) -> dict[str, Any]:
        """Kind, provenance and costs of the prefix at this step."""
        seen = {"tokens_seen": progress.tokens_seen, "targets_seen": progress.targets_seen}
        costs = {
            **self.trace_costs,
            "training_seconds": progress.training_seconds,
            "teacher_pass_seconds": progress.teacher_pass_seconds,
            "target_tokens_seen": progress.targets_seen,
        }
        trained = {**self.provenance, **seen}
        return self.setup.origin.description(self.start, progress.step, self.arm.induction, trained, measured(costs))


def _agreed(value: Any) -> Any:
    """Rank 0's value on every rank."""
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]
