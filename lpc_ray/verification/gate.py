"""The publish gate: whether a prefix is good enough on its source and harmless enough off it."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lpc_ray.artifacts.store import Manifest
from lpc_ray.config.recipe import GateRecipe
from lpc_ray.config.shares import as_counted
from lpc_ray.errors import ArtifactError
from lpc_ray.verification.off_source import Damage


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """`reasons`: what stood in the way, each as got and wanted; empty when the gate is passed."""

    passed: bool
    reasons: tuple[str, ...]


def judge(gate: GateRecipe, held_out: float | None, damage: Damage | None) -> GateVerdict:
    """held_out: share of held-out checks passed. A figure that was not measured passes no threshold; one that is exactly at
    its threshold passes it.
    """
    drift = None if damage is None or math.isnan(damage.kl_drift) else damage.kl_drift
    bounds: list[tuple[str, Fraction | float | None, Fraction | float | None, bool]] = [
        ("held_out", _counted(held_out), _counted(gate.min_held_out), False),
        ("kl_drift", drift, gate.max_kl_drift, True),
        ("accuracy_drop", damage and _drop(damage), _counted(gate.max_accuracy_drop), True),
        ("abstention", damage and _counted(damage.abstention), _counted(gate.min_abstention), False),
    ]
    reasons = []
    for name, got, bound, is_upper in bounds:
        if bound is None:
            continue
        wanted = f"wanted at {'most' if is_upper else 'least'} {float(bound):g}"
        if got is None:
            reasons.append(f"{name} was not measured, {wanted}")
        elif (got > bound) if is_upper else (got < bound):
            reasons.append(f"got {name} {_told(float(got), float(bound))}, {wanted}")
    return GateVerdict(not reasons, tuple(reasons))


def _counted(share: float | None) -> Fraction | None:
    return None if share is None else as_counted(share)


def _drop(damage: Damage) -> Fraction | None:
    bare, accuracy = _counted(damage.accuracy_bare), _counted(damage.accuracy)
    return None if bare is None or accuracy is None else bare - accuracy


def _told(got: float, bound: float) -> str:
    """Four digits, and more where these would read like the bound."""
    text = f"{got:.4g}"
    return text if text != f"{bound:.4g}" else f"{got:.15g}"


def require_passed(manifest: Manifest, where: str) -> None:
    """Raises: ArtifactError for a prefix that no gate let through."""
    verdict: dict[str, Any] = manifest.verification.get("gate") or {}
    if not verdict.get("passed"):
        reasons = "; ".join(verdict.get("reasons", [])) or "it was never put to a gate"
        raise ArtifactError(f"{where}: prefix {manifest.digest} has not passed the publish gate: {reasons}")
