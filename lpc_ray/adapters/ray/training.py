"""A worker of the training group, which holds the frozen backbone and trains one arm after another.

Arms are enrolled at a desk, a small actor between the Tune trials and the workers. At a checkpoint the workers publish
the artifact, save the state to resume from, report to the desk and wait for its word, so that training sleeps while the
engine verifies on the same cores. A worker that died is replaced and resumes the arm from its last checkpoint.
"""

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
import torch
from transformers import AutoModelForCausalLM

from lpc_ray.adapters.ray.group import GroupSetup, training_backend
from lpc_ray.adapters.ray.ranks import AgreedError, Ranks, failure_of
from lpc_ray.artifacts.store import publish
from lpc_ray.errors import DivergedError
from lpc_ray.model.embedded import prefix_cache
from lpc_ray.model.identity import model_identity
from lpc_ray.prefix.attention import Prefix, attach
from lpc_ray.records import TraceRow
from lpc_ray.run.arms import Arm
from lpc_ray.run.checkpoints import ArmFailure, ArmStore, Checkpoint
from lpc_ray.run.costs import measured, trace_costs
from lpc_ray.traces.store import TraceStore
from lpc_ray.training.learner import PrefixLearner
from lpc_ray.training.loop import Progress, check_rows, train
from lpc_ray.training.objectives.base import rows_for

if TYPE_CHECKING:
    from lpc_ray.training.stepper import Stepper, TrainingBackend


def train_arms(config: dict[str, Any]) -> None:
    """The train function: the backbone once, then arm after arm until the desk closes."""
    setup, ranks = config["setup"], Ranks(config["desk"])
    torch.set_num_threads(setup.resources.threads)
    load = partial(load_backbone, setup.model, setup.recipe.model.revision, setup.recipe.model.dtype)
    backbone = load()
    backend = training_backend(setup.resources)
    backend.prepare()
    while (arm := ranks.next_arm()) is not None:
        ranks.finish(arm, _train_arm(setup, config["desk"], ranks, arm, backbone, backend))
        if backend.shards_backbone(setup.resources):
            backbone = load()


def load_backbone(model: str, revision: str | None, dtype: str):
    """The frozen model, prefix-attached, on this worker's device."""
    backbone = AutoModelForCausalLM.from_pretrained(
        model, revision=revision, dtype=getattr(torch, dtype), trust_remote_code=False
    )
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
        backbone = backbone.to(device)  # pyright: ignore[reportArgumentType]  # a decorator hides its first parameter
    return attach(backbone)


def _train_arm(
    setup: GroupSetup, desk: Any, ranks: Ranks, arm: Arm, backbone: Any, backend: "TrainingBackend"
) -> ArmFailure | None:
    """Train one arm; returns how it failed, if it did, the same on every rank.

    Raises: what leaves the ranks at different points, so that this group is of no more use.
    """
    ready, failure = None, None
    try:  # what a rank does for itself, with nobody waiting for it in a collective
        ready = _prepare(setup, desk, ranks, arm, backbone, backend)
    except Exception as error:
        failure = failure_of(error, 0, ranks.rank)
        if failure is None:
            raise
    failure = ranks.failure(arm, failure)
    if ready is None or failure is not None:
        return failure
    training, progress, publishing = setup.recipe.training, ready.progress, ready.publishing

    def note(now: Progress) -> None:
        if ranks.rank == 0:
            desk.note_step.remote(arm.name, now.step, now.loss)

    try:
        stepper = backend.new_stepper(ready.learner, training, setup.resources)
        if ready.moments is not None:
            stepper.restore_moments(ready.moments, progress.step)
        try:
            if progress.step == 0 or publishing(stepper, progress):
                general = ready.general_rows
                train(stepper, ready.rows, training, arm.seed, progress, partial(publishing, stepper), general, note)
        except (DivergedError, AgreedError) as error:
            failure = failure_of(error, progress.step, ranks.rank)
        stepper.close()
    except Exception as error:
        alone = failure_of(error, progress.step, ranks.rank)
        if alone is not None:
            ranks.leave(arm, alone)
        raise
    return failure


@dataclass
class _Ready:
    """All that an arm's training starts from. moments: None for an arm that has not begun."""

    rows: list[TraceRow]
    general_rows: list[TraceRow]
    learner: PrefixLearner
    progress: Progress
    moments: dict[str, torch.Tensor] | None
    publishing: "_Publishing"


def _prepare(setup: GroupSetup, desk: Any, ranks: Ranks, arm: Arm, backbone: Any, backend: "TrainingBackend") -> _Ready:
    recipe, training, arms = setup.recipe, setup.recipe.training, ArmStore(setup.run.arm(arm.id))
    traces = TraceStore(setup.run.traces(arm.traces))
    identity = model_identity(setup.model, recipe.model.revision)
    general = TraceStore(setup.run.traces(arm.general_traces)) if arm.general_traces else None
    rows = rows_for(arm.objective, traces.rows(training.teacher_tokens), training)
    general_rows = rows_for(arm.objective, general.rows(), training) if general else []
    check_rows(rows, training, general_rows)
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
    publishing = _Publishing(
        setup=setup,
        desk=desk,
        ranks=ranks,
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
    return _Ready(rows, general_rows, learner, progress, tensors if saved is not None else None, publishing)


def _counter(name: str, value: float) -> Any:
    if value != value:  # NaN stands for "not yet"
        return None
    return int(value) if name in ("step", "targets_seen", "tokens_seen") else value


@dataclass
class _Publishing:
    """At a checkpoint: artifact, then state, then the checkpoint's record, then the desk. Each step may be repeated."""

    setup: GroupSetup
    desk: Any
    ranks: Ranks
    arm: Arm
    identity: Any
    trace_costs: dict[str, Any]
    start: dict[str, Any]
    provenance: dict[str, Any]

    def __call__(self, stepper: "Stepper", progress: Progress) -> bool:
        state = stepper.state()  # every rank takes part
        if not all(torch.isfinite(state[name]).all() for name in ("keys", "values")):
            raise DivergedError("got a prefix that is not finite; a lower recipe.training.lr or key_lr_factor may help")
        return self.ranks.decided(lambda: self._publish(state, progress))

    def _publish(self, state: dict[str, torch.Tensor], progress: Progress) -> bool:
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
        return ray.get(self.desk.report.remote(self.arm.id, checkpoint))

    def _description(self, progress: Progress) -> dict[str, Any]:
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
