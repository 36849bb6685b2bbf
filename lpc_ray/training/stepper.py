"""What takes an optimizer step: the protocol of training backends, and a plain one in this process."""

from typing import NamedTuple, Protocol

import torch
from torch import nn

from lpc_ray.config.job import TrainingResources
from lpc_ray.config.recipe import TrainingRecipe
from lpc_ray.prefix.attention import Prefix
from lpc_ray.training.learner import PrefixLearner
from lpc_ray.training.packing import Windows

MOMENTS = ("exp_avg", "exp_avg_sq")


def parameter_groups(prefix: Prefix, recipe: TrainingRecipe) -> list[dict]:
    """Values at `lr`, keys at `lr · key_lr_factor`; `peak_lr` is what the schedule scales."""
    peaks = ((prefix.values, recipe.lr), (prefix.keys, recipe.lr * recipe.key_lr_factor))
    return [{"params": [parameter], "lr": peak, "peak_lr": peak} for parameter, peak in peaks]


def new_optimizer(groups: list[dict]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, weight_decay=0.0)


class StepTaken(NamedTuple):
    """`loss`: the global mean per target before the step. `teacher_seconds`: of teacher passes, a mean over the ranks."""

    loss: float
    grad_norm: float
    teacher_seconds: float


class Stepper(Protocol):
    """One rank's share of a training run: backward and optimizer step over its micro-batches, and the state to resume from."""

    rank: int
    world: int
    learner: PrefixLearner

    def step(self, micro_batches: list[Windows], global_targets: int, lr_factor: float) -> StepTaken:
        """One optimizer step; every rank gets the same figures."""
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

    def step(self, micro_batches: list[Windows], global_targets: int, lr_factor: float) -> StepTaken:
        self.optimizer.zero_grad(set_to_none=True)
        total, teacher_before = 0.0, self.learner.teacher_seconds
        for windows in micro_batches:
            loss = self.learner(windows) / global_targets
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(self.learner.prefix.parameters(), self.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * lr_factor
        self.optimizer.step()
        return StepTaken(total, float(norm), self.learner.teacher_seconds - teacher_before)

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
