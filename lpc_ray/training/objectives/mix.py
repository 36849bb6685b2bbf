"""Next-token prediction and distillation together."""

from typing import TYPE_CHECKING

from lpc_ray.config.recipe import TrainingRecipe

if TYPE_CHECKING:
    import torch

    from lpc_ray.training.objectives.base import Predictions

needs_teacher = True


def loss(predictions: "Predictions", recipe: TrainingRecipe) -> "torch.Tensor":
    """w · ntp + (1 − w) · kl with w = `mix_ntp_weight`.

    This project's own mix of the two losses; it follows Hinton et al., arXiv 1503.02531, section 2, which adds the loss of
    the correct labels to that of the soft targets. Raises: DataError for a target without a teacher.
    """
    from lpc_ray.training.objectives.base import kl_losses, ntp_losses

    weight, logits_NV = recipe.mix_ntp_weight, predictions.logits_NV
    probabilities, ids = predictions.taught("mix")
    ntp = (weight * ntp_losses(logits_NV, predictions.targets_N)).sum()
    return ntp + ((1 - weight) * kl_losses(logits_NV, probabilities, ids, recipe.kl_temperature)).sum()
