"""Training a prefix on a frozen backbone: the schedule, one step, the loop. Knows no framework but torch.

Shape letters: N targets, M of them taught, V vocabulary, E hidden size; W S R T as in `packing`, L P H D as in `prefix`.
"""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from lpc_ray.config.job import TrainingResources
from lpc_ray.config.recipe import TrainingRecipe
from lpc_ray.errors import DataError
from lpc_ray.prefix.attention import Prefix, prefix_arguments
from lpc_ray.records import TraceRow
from lpc_ray.training.objectives import kl, load_objective
from lpc_ray.training.objectives.base import Predictions, soft_targets, teacher_targets
from lpc_ray.training.packing import Windows, batches, collate, pack


class PrefixLearner(nn.Module):
    """The prefix as the only parameters, and the loss of packed windows under the frozen backbone.

    The backbone is held outside the module tree, so that an optimizer and a checkpoint see the prefix alone;
    `shard_backbone` puts it inside, for a backend that shards it. It is the teacher too where the recipe has targets
    recomputed.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        prefix: Prefix,
        objective: str,
        recipe: TrainingRecipe,
        shard_backbone: bool = False,
    ):
        super().__init__()
        self.prefix = prefix
        self.objective = load_objective(objective)
        self.recipe = recipe
        self._outside = [backbone]
        if shard_backbone:
            self.backbone = backbone

    def forward(self, windows: Windows) -> torch.Tensor:
        """Summed loss over the windows' targets, fp32 scalar; general prompts are distilled whatever the objective.

        Raises: DataError for distillation without a teacher.
        """
        logits_NV = target_logits(self._outside[0], self.prefix, windows)
        device = logits_NV.device
        is_taught_N = torch.zeros(len(windows.targets), dtype=torch.bool)
        is_taught_N[torch.from_numpy(windows.taught)] = True
        predictions = Predictions(
            logits_NV,
            torch.from_numpy(windows.targets).to(device),
            is_taught_N.to(device),
            cache(lambda: self._teacher(windows, device)),
        )
        if self.objective is kl or not self.recipe.general_share:  # not the batch's: ranks must run the same forwards
            return self.objective.loss(predictions, self.recipe)
        is_general_N = torch.from_numpy(windows.is_general).to(device)
        own, general = predictions.part(~is_general_N), predictions.part(is_general_N)
        return self.objective.loss(own, self.recipe) + kl.loss(general, self.recipe)

    def _teacher(self, windows: Windows, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The teacher's probabilities at the taught targets and, unless they span the vocabulary, their token ids."""
        if self.recipe.teacher_targets == "stored":
            ids, logprobs = (torch.from_numpy(one).to(device) for one in (windows.topk_ids, windows.topk_logprobs))
            return soft_targets(logprobs, self.recipe), ids
        return teacher_targets(teacher_logits(self._outside[0], windows), self.recipe)


@torch.no_grad()
def teacher_logits(backbone: PreTrainedModel, windows: Windows) -> torch.Tensor:
    """fp32 logits [M, V] of the backbone without a prefix, after the prompt its teacher saw, at the taught targets."""
    device = next(backbone.parameters()).device
    ids_RT = torch.from_numpy(windows.teacher_ids).to(device)
    states_RTE = backbone.base_model(
        input_ids=ids_RT,
        position_ids=torch.arange(ids_RT.shape[1], device=device)[None].expand_as(ids_RT),
        use_cache=False,
    ).last_hidden_state
    return _logits(backbone, states_RTE.flatten(0, 1)[torch.from_numpy(windows.teacher_states).to(device)])


def target_logits(backbone: PreTrainedModel, prefix: Prefix, windows: Windows) -> torch.Tensor:
    """fp32 logits [N, V] at the positions that predict a target; the rest of the vocabulary product is never made."""
    device = next(backbone.parameters()).device
    keys, values = prefix.full()
    segments = torch.from_numpy(windows.segments).to(device)
    states_WSE = backbone.base_model(
        input_ids=torch.from_numpy(windows.token_ids).to(device),
        position_ids=torch.from_numpy(windows.positions).to(device) + prefix.num_tokens,
        use_cache=False,
        **prefix_arguments(keys, values, segments),
    ).last_hidden_state
    states_NE = states_WSE.flatten(0, 1)[torch.from_numpy(windows.states).to(device)]
    return _logits(backbone, states_NE)


def _logits(backbone: PreTrainedModel, states_NE: torch.Tensor) -> torch.Tensor:
    """fp32 logits [N, V] of the backbone's head, scaled and capped as its architecture has it."""
    head = backbone.get_output_embeddings()
    assert head is not None, "a causal language model has an output head"
    logits_NV = head(states_NE).float()
    config = backbone.config.get_text_config()
    if getattr(config, "logits_scaling", None):
        logits_NV = logits_NV / config.logits_scaling
    if getattr(config, "final_logit_softcapping", None):
        logits_NV = torch.tanh(logits_NV / config.final_logit_softcapping) * config.final_logit_softcapping
    return logits_NV


def lr_factor(step: int, recipe: TrainingRecipe) -> float:
    """The learning rate of optimizer step `step` (from 1) as a fraction of its peak: linear warm-up, then a cosine."""
    if step <= recipe.warmup_steps:
        return step / recipe.warmup_steps
    span = max(1, recipe.steps - recipe.warmup_steps)
    progress = (step - recipe.warmup_steps) / span
    return recipe.final_lr_fraction + (1 - recipe.final_lr_fraction) * 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(prefix: Prefix, recipe: TrainingRecipe) -> list[dict]:
    """Values at `lr`, keys at `lr · key_lr_factor`; `peak_lr` is what the schedule scales."""
    peaks = ((prefix.values, recipe.lr), (prefix.keys, recipe.lr * recipe.key_lr_factor))
    return [{"params": [parameter], "lr": peak, "peak_lr": peak} for parameter, peak in peaks]


def new_optimizer(groups: list[dict]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, weight_decay=0.0)


MOMENTS = ("exp_avg", "exp_avg_sq")


class Stepper(Protocol):
    """One rank's share of a training run: backward and optimizer step over its micro-batches, and the state to resume from."""

    rank: int
    world: int

    def step(self, micro_batches: list[Windows], global_targets: int, lr_factor: float) -> tuple[float, float]:
        """One optimizer step. Returns the global mean loss per target before it, and the gradient norm."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """Full fp32 prefix (`keys`, `values` [L, P, H, D]) and Adam moments (`keys.exp_avg`, … without the frozen
        positions) on CPU; every rank must call it.
        """
        ...

    def restore_moments(self, tensors: dict[str, torch.Tensor], step: int) -> None:
        """Continue as if `step` optimizer steps had been taken here (the prefix itself is in the learner already)."""
        ...

    def close(self) -> None:
        """Free what the stepper holds; it takes no further step."""
        ...


class TrainingBackend(Protocol):
    """A module that makes steppers; `cluster.training.backend` names it in `lpc_ray.adapters`."""

    def prepare(self) -> None:
        """Import what is heavy, once per worker."""

    def describe(self, resources: TrainingResources) -> str:
        """How it will train, in two words."""
        ...

    def shards_backbone(self, resources: TrainingResources) -> bool:
        """Whether it cuts up the backbone of each learner, which must then be loaded anew."""
        ...

    def new_stepper(self, learner: PrefixLearner, recipe: TrainingRecipe, resources: TrainingResources) -> Stepper:
        """`torch.distributed` is initialised, one process per worker."""
        ...


class PlainStepper:
    """One process, torch alone: the reference that the distributed stepper must equal."""

    rank, world = 0, 1

    def __init__(self, learner: PrefixLearner, recipe: TrainingRecipe):
        self.learner = learner
        self.optimizer = new_optimizer(parameter_groups(learner.prefix, recipe))
        self.clip_norm = recipe.clip_norm

    def step(self, micro_batches: list[Windows], global_targets: int, lr_factor: float) -> tuple[float, float]:
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for windows in micro_batches:
            loss = self.learner(windows) / global_targets
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(self.learner.prefix.parameters(), self.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * lr_factor
        self.optimizer.step()
        return total, float(norm)

    def state(self) -> dict[str, torch.Tensor]:
        keys, values = (tensor.detach().cpu().clone() for tensor in self.learner.prefix.full())
        tensors = {"keys": keys, "values": values}
        for name, parameter in self._trained():
            for moment in MOMENTS:
                kept = self.optimizer.state[parameter].get(moment, torch.zeros_like(parameter))
                tensors[f"{name}.{moment}"] = kept.detach().cpu().clone()
        return tensors

    def restore_moments(self, tensors: dict[str, torch.Tensor], step: int) -> None:
        for name, parameter in self._trained():
            moments = {moment: tensors[f"{name}.{moment}"].clone().to(parameter.device) for moment in MOMENTS}
            self.optimizer.state[parameter] = {"step": torch.tensor(float(step)), **moments}

    def close(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def _trained(self) -> tuple[tuple[str, nn.Parameter], ...]:
        return ("keys", self.learner.prefix.keys), ("values", self.learner.prefix.values)


@dataclass
class Progress:
    """Where a training run stands; `loss` is the mean per target of the last step, None before the first."""

    step: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    targets_seen: int = 0
    tokens_seen: int = 0
    training_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)


def train(
    stepper: Stepper,
    rows: list[TraceRow],
    recipe: TrainingRecipe,
    seed: int,
    progress: Progress,
    at_checkpoint: Callable[[Progress], bool],
    general: list[TraceRow] | None = None,
    after_step: Callable[[Progress], None] | None = None,
) -> Progress:
    """Run optimizer steps until `recipe.steps`; at each checkpoint step not yet passed call `at_checkpoint`.

    progress: the state to continue from; mutated and returned. Training ends when `at_checkpoint` returns False.
    general: traces of general prompts, `recipe.general_share` of the tokens. after_step: called after each step, for
    news of it. Raises: DataError without rows.
    """
    if recipe.general_share and not general:
        raise DataError(
            f"training: got no trace of a general prompt, wanted some for general_share {recipe.general_share}"
        )
    if not rows:
        raise DataError("training: got no trace that can be trained on, wanted at least one")
    checkpoints = set(recipe.checkpoints())
    if progress.step == 0 and not at_checkpoint(progress):
        return progress
    drawn = batches(rows, recipe.batch_tokens, seed, general, recipe.general_share)
    upcoming = itertools.islice(drawn, progress.step, recipe.steps)
    for chosen in upcoming:
        started = time.perf_counter()
        step = progress.step + 1
        targets = sum(int(row.is_target.sum()) for row in chosen)
        micro_batches = _share_of_rank(chosen, stepper.rank, stepper.world, recipe)
        progress.loss, progress.grad_norm = stepper.step(micro_batches, targets, lr_factor(step, recipe))
        progress.losses.append(progress.loss)
        progress.step = step
        progress.targets_seen += targets
        progress.tokens_seen += sum(len(row.token_ids) for row in chosen)
        progress.training_seconds += time.perf_counter() - started
        if after_step is not None:
            after_step(progress)
        if step in checkpoints and not at_checkpoint(progress):
            break
    return progress


def _share_of_rank(chosen: list[TraceRow], rank: int, world: int, recipe: TrainingRecipe) -> list[Windows]:
    """This rank's micro-batches; every rank gets equally many (an empty one has no targets and a loss of zero)."""
    packed = [pack(chosen[one::world], recipe.window_tokens) for one in range(world)]
    size = recipe.micro_batch_windows
    count = max(1, *(-(-len(windows) // size) for windows in packed))
    mine = packed[rank]
    return [collate(mine[start : start + size]) for start in range(0, count * size, size)]
