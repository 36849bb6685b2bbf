"""What a prefix is trained for. Each objective is a module that defines

    needs_teacher                       whether it learns from a teacher's distributions
    loss(predictions, recipe) -> fp32   summed over the targets; the step divides by their number in the global batch

A plan reads `needs_teacher`, so a module imports torch inside its functions. `base` holds what they share.
"""

from types import ModuleType

from lpc_ray.config.plugins import load_plugin


def load_objective(name: str, where: str = "objective") -> ModuleType:
    """The module of objective `name`. Raises: ConfigError naming `where` for an unknown one."""
    return load_plugin(__name__, "loss", name, where, "needs_teacher")
