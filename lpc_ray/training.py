"""Training a prefix on a frozen backbone: objectives, the schedule, one step, the loop. Knows no Ray and no DeepSpeed.

Shape letters: W windows, S tokens per window, N targets, K top-k entries, V vocabulary, L P H D as in `prefix`.
"""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from lpc_ray.config import TrainingRecipe
from lpc_ray.errors import DataError
from lpc_ray.prefix import Prefix, prefix_arguments
from lpc_ray.records import TraceRow
from lpc_ray.traces import Windows, batches, collate, pack


class PrefixLearner(nn.Module):
    """The prefix as the only parameters, and the loss of packed windows under the frozen backbone.

    The backbone is held outside the module tree, so that an optimizer, a checkpoint and DeepSpeed see the prefix alone;
    `shard_backbone` puts it inside, for ZeRO-3.
    """

    def __init__(self, backbone: PreTrainedModel, prefix: Prefix, objective: str, shard_backbone: bool = False):
        super().__init__()
        self.prefix = prefix
        self.objective = objective
        self._outside = [backbone]
        if shard_backbone:
            self.backbone = backbone

    def forward(self, windows: Windows) -> torch.Tensor:
        """Summed loss over the windows' targets, fp32 scalar."""
        logits_NV = target_logits(self._outside[0], self.prefix, windows)
        if self.objective == "ntp":
            return ntp_sum(logits_NV, torch.from_numpy(windows.targets).to(logits_NV.device))
        if windows.topk_ids is None or windows.topk_logprobs is None:
            raise DataError("objective kl: got traces without a teacher's top-k, wanted them at every target")
        return kl_sum(
            logits_NV,
            torch.from_numpy(windows.topk_ids).to(logits_NV.device),
            torch.from_numpy(windows.topk_logprobs).to(logits_NV.device),
        )


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
    head = backbone.get_output_embeddings()
    assert head is not None, "a causal language model has an output head"
    logits_NV = head(states_NE).float()
    config = backbone.config.get_text_config()
    if getattr(config, "logits_scaling", None):
        logits_NV = logits_NV / config.logits_scaling
    if getattr(config, "final_logit_softcapping", None):
        logits_NV = torch.tanh(logits_NV / config.final_logit_softcapping) * config.final_logit_softcapping
    return logits_NV


def ntp_sum(logits_NV: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
    """Σ_t −log q(y_t). METHODS section 4."""
    return nn.functional.cross_entropy(logits_NV, targets_N, reduction="sum")


def kl_sum(logits_NV: torch.Tensor, topk_ids_NK: torch.Tensor, topk_logprobs_NK: torch.Tensor) -> torch.Tensor:
    """Σ_t Σ_{x∈S_t} −p_T(x) log q(x), p_T as the teacher returned it, not renormalised. METHODS section 4.

    The cross-entropy form: its gradient is that of the KL divergence. A dropped entry has log-probability −inf.
    Source: Cartridges, arXiv 2506.06266, section 4.2.
    """
    log_q_NK = torch.log_softmax(logits_NV, dim=-1).gather(1, topk_ids_NK)
    return -(topk_logprobs_NK.exp() * log_q_NK).sum()


def restrict_topk(topk_logprobs: np.ndarray, mass: float | None, renormalise: bool) -> np.ndarray:
    """Teacher log-probs [N, K], best first, with entries past the shortest rank prefix of `mass` set to −inf.

    Where K entries never reach the mass, all are kept. `renormalise`: what is kept sums to one.
    """
    kept = topk_logprobs
    if mass is not None:
        before = np.cumsum(np.exp(kept), axis=1) - np.exp(kept)
        kept = np.where(before < mass, kept, -np.inf).astype(np.float32)
    if renormalise:
        kept = kept - np.log(np.exp(kept).sum(axis=1, keepdims=True))
    return kept


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


class Stepper(Protocol):
    """Backward and optimizer step over one rank's micro-batches; the DeepSpeed adapter and `PlainStepper` are two."""

    rank: int
    world: int

    def step(self, micro_batches: list[Windows], global_targets: int, lr_factor: float) -> tuple[float, float]:
        """One optimizer step. Returns the global mean loss per target before it, and the gradient norm."""
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
) -> Progress:
    """Run optimizer steps until `recipe.steps`; at each checkpoint step not yet passed call `at_checkpoint`.

    progress: the state to continue from; mutated and returned. Training ends when `at_checkpoint` returns False.
    Raises: DataError without rows.
    """
    if not rows:
        raise DataError("training: got no trace that can be trained on, wanted at least one")
    rows = [_with_restricted_topk(row, recipe) for row in rows]
    checkpoints = set(recipe.checkpoints())
    if progress.step == 0 and not at_checkpoint(progress):
        return progress
    upcoming = itertools.islice(batches(rows, recipe.batch_tokens, seed), progress.step, recipe.steps)
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
        if step in checkpoints and not at_checkpoint(progress):
            break
    return progress


def _with_restricted_topk(row: TraceRow, recipe: TrainingRecipe) -> TraceRow:
    if recipe.topk_mass is None and not recipe.renormalise_topk:
        return row
    restricted = restrict_topk(row.topk_logprobs, recipe.topk_mass, recipe.renormalise_topk)
    return replace(row, topk_logprobs=restricted)


def _share_of_rank(chosen: list[TraceRow], rank: int, world: int, recipe: TrainingRecipe) -> list[Windows]:
    """This rank's micro-batches; every rank gets equally many (an empty one has no targets and a loss of zero)."""
    packed = [pack(chosen[one::world], recipe.window_tokens) for one in range(world)]
    size = recipe.micro_batch_windows
    count = max(1, *(-(-len(windows) // size) for windows in packed))
    mine = packed[rank]
    return [collate(mine[start : start + size]) for start in range(0, count * size, size)]
