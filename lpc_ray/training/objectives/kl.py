"""Distillation from the teacher that saw the source."""

from typing import TYPE_CHECKING

from lpc_ray.config.recipe import TrainingRecipe

if TYPE_CHECKING:
    import torch

    from lpc_ray.training.objectives.base import Predictions

needs_teacher = True


def loss(predictions: "Predictions", recipe: TrainingRecipe) -> "torch.Tensor":
    """Σ_t Σ_x −p_T(x) log q(x) over the teacher's kept tokens x, as `base.kl_losses` has it.

    Source: Cartridges, arXiv 2506.06266, section 4.2. Raises: DataError for a target without a teacher.
    """
    from lpc_ray.training.objectives.base import kl_losses

    probabilities, ids = predictions.taught("kl")
    return kl_losses(predictions.logits_NV, probabilities, ids, recipe.kl_temperature).sum()
