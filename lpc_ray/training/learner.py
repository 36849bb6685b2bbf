"""The prefix on the frozen backbone: the loss of packed windows, and whose logits it is made of.

Shape letters: N targets, M of them taught, V vocabulary, E hidden size; W S R T as in `packing`, L P H D as in `prefix`.
"""

import math
import time
from functools import cache

import torch
from torch import nn
from transformers import PreTrainedModel

from lpc_ray.config.recipe import TrainingRecipe
from lpc_ray.prefix.attention import Prefix, prefix_arguments
from lpc_ray.training.objectives import kl, load_objective
from lpc_ray.training.objectives.base import Predictions, soft_targets, teacher_targets
from lpc_ray.training.packing import Windows


class PrefixLearner(nn.Module):
    """The prefix as the only parameters, and the loss of packed windows under the frozen backbone.

    The backbone is held outside the module tree, so that an optimizer and a checkpoint see the prefix alone;
    `shard_backbone` puts it inside, for a backend that shards it. It is the teacher too where the recipe has targets
    recomputed; `teacher_seconds` is what its passes have taken here, 0 where the traces hold the targets.
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
        self.teacher_seconds = 0.0
        self._outside = [backbone]
        if shard_backbone:
            self.backbone = backbone

    @property
    def loss_of_guessing(self) -> float:
        """About the loss per target of a model that finds every token equally likely."""
        vocabulary = self._outside[0].config.get_text_config().vocab_size
        return math.log(vocabulary) * max(1.0, self.recipe.kl_temperature**2)

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
        started = _now(device)
        targets = teacher_targets(teacher_logits(self._outside[0], windows), self.recipe)
        self.teacher_seconds += _now(device) - started
        return targets


def _now(device: torch.device) -> float:
    """Seconds on this process's clock, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


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
