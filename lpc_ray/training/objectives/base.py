"""What objectives share: a batch's predictions, the two losses per target, and a teacher's probabilities.

Shape letters: N targets, M of them taught, K top-k entries, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from lpc_ray.config.recipe import GENERAL, TrainingRecipe
from lpc_ray.errors import DataError
from lpc_ray.records import TOP_K, TraceRow
from lpc_ray.training.objectives import load_objective

Teacher = Callable[[], tuple[torch.Tensor, torch.Tensor | None]]


@dataclass(frozen=True)
class Predictions:
    """What a batch predicts at its targets.

    logits_NV: fp32; targets_N: int64 token ids; is_taught_N: bool, whether a target has a teacher. teacher: returns its
    probabilities [M, K] at the taught targets and their token ids [M, K], or None for the whole vocabulary, in order.
    """

    logits_NV: torch.Tensor
    targets_N: torch.Tensor
    is_taught_N: torch.Tensor
    teacher: Teacher

    def taught(self, objective: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The teacher's probabilities and ids at all targets. Raises: DataError where a target has no teacher."""
        untaught = int((~self.is_taught_N).sum())
        if untaught:
            raise DataError(f"objective {objective}: got {untaught} targets without a teacher's top-k")
        return self.teacher()

    def part(self, chosen_N: torch.Tensor) -> "Predictions":
        """The predictions at the targets that bool `chosen_N` chooses."""
        chosen_M = chosen_N[self.is_taught_N]

        def teacher() -> tuple[torch.Tensor, torch.Tensor | None]:
            probabilities, ids = self.teacher()
            return probabilities[chosen_M], None if ids is None else ids[chosen_M]

        return Predictions(self.logits_NV[chosen_N], self.targets_N[chosen_N], self.is_taught_N[chosen_N], teacher)


def ntp_losses(logits_NV: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
    """−log q(y_t) per target, [N]."""
    return nn.functional.cross_entropy(logits_NV, targets_N, reduction="none")


def kl_losses(
    logits_MV: torch.Tensor, probabilities_MK: torch.Tensor, ids_MK: torch.Tensor | None, temperature: float = 1.0
) -> torch.Tensor:
    """Σ_{x∈S_t} −p_T(x) log q(x) per target, [M], with q at `temperature`, times its square.

    ids_MK: which tokens the teacher's probabilities belong to; None: the whole vocabulary, in order. The cross-entropy
    form: its gradient is that of the KL divergence; the square keeps the gradient's size at any temperature.
    Source: Cartridges, arXiv 2506.06266, section 4.2; temperature: Hinton et al., arXiv 1503.02531, section 2.
    """
    log_q_MK = torch.log_softmax(logits_MV / temperature, dim=-1)
    if ids_MK is not None:
        log_q_MK = log_q_MK.gather(1, ids_MK)
    return -(probabilities_MK * log_q_MK).sum(dim=1) * temperature**2


def soft_targets(logprobs_MK: torch.Tensor, recipe: TrainingRecipe) -> torch.Tensor:
    """The teacher's probabilities as the objective weighs them, [M, K], from its log-probs at temperature 1, best first.

    `topk_mass`: entries past the shortest rank prefix that reaches it are 0; where it is never reached, all are kept.
    Then the temperature; then, with `renormalise_topk`, what is kept sums to one (else p_T is as the teacher returned it).
    """
    kept = logprobs_MK
    if recipe.topk_mass is not None:
        before = kept.exp().cumsum(dim=1) - kept.exp()
        kept = kept.masked_fill(before >= recipe.topk_mass, -torch.inf)
    kept = kept / recipe.kl_temperature
    return torch.softmax(kept, dim=1) if recipe.renormalise_topk else kept.exp()


def teacher_targets(logits_MV: torch.Tensor, recipe: TrainingRecipe) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A teacher's logits → (probabilities, ids) for `kl_losses`: full vocabulary, nothing cut off but by `topk_mass`."""
    if recipe.topk_mass is None:
        return torch.softmax(logits_MV / recipe.kl_temperature, dim=-1), None
    logprobs, ids = torch.log_softmax(logits_MV, dim=-1).sort(dim=-1, descending=True)
    return soft_targets(logprobs, recipe), ids


def rows_for(objective: str, rows: list[TraceRow], recipe: TrainingRecipe) -> list[TraceRow]:
    """The rows with what their part of the objective reads of the teacher, and nothing else.

    Raises: DataError where it reads what a row does not have.
    """
    needs_teacher = load_objective(objective).needs_teacher
    return [_prepared(objective, needs_teacher, row, recipe) for row in rows]


def _prepared(objective: str, needs_teacher: bool, row: TraceRow, recipe: TrainingRecipe) -> TraceRow:
    no_prompt = np.zeros(0, np.int32)
    if not needs_teacher and row.family != GENERAL:
        no_ids, no_logprobs = np.zeros((0, TOP_K), np.int32), np.zeros((0, TOP_K), np.float32)
        return replace(row, topk_ids=no_ids, topk_logprobs=no_logprobs, teacher_prompt=no_prompt)
    where = f"objective {objective}: got trace {row.id} of family {row.family}"
    if not len(row.topk_ids):
        raise DataError(f"{where} without a teacher's top-k, wanted it at every target")
    if recipe.teacher_targets == "stored":
        return replace(row, teacher_prompt=no_prompt)
    if not len(row.teacher_prompt):
        raise DataError(f"{where} without the prompt its teacher saw, wanted it for teacher_targets: recomputed")
    return row
