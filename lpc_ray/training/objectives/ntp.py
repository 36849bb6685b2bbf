"""Next-token prediction of the traces' own words."""

from typing import TYPE_CHECKING

from lpc_ray.config.recipe import TrainingRecipe

if TYPE_CHECKING:
    import torch

    from lpc_ray.training.objectives.base import Predictions

needs_teacher = False


def loss(predictions: "Predictions", recipe: TrainingRecipe) -> "torch.Tensor":
    """Σ_t −log q(y_t). Source: ReasonCACHE, arXiv 2602.02366, and the baseline of Cartridges, arXiv 2506.06266, section 4.2."""
    from lpc_ray.training.objectives.base import ntp_losses

    return ntp_losses(predictions.logits_NV, predictions.targets_N).sum()
