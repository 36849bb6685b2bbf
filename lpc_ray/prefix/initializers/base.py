"""What initializers share: the result, and how they refuse material."""

from dataclasses import dataclass, field
from typing import Any

import torch

from lpc_ray.errors import DataError


@dataclass(frozen=True)
class Initialized:
    """keys, values: fp32 [L, P, H, D]; `record` goes into the artifact's provenance."""

    keys: torch.Tensor
    values: torch.Tensor
    record: dict[str, Any] = field(default_factory=dict)


def require(condition: bool, where: str, got: int, wanted: str) -> None:
    """Raises: DataError naming the initializer, the tokens it got and its rule, unless `condition`."""
    if not condition:
        raise DataError(f"{where}: got material of {got} tokens, wanted {wanted}")
