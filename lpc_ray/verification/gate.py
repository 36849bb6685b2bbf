"""The publish gate: whether a prefix is good enough on its source and harmless enough off it."""

from dataclasses import dataclass
from typing import Any

from lpc_ray.artifacts.store import Manifest
from lpc_ray.config.recipe import GateRecipe
from lpc_ray.errors import ArtifactError
from lpc_ray.verification.off_source import Damage


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """`reasons`: what stood in the way, each as got and wanted; empty when the gate is passed."""

    passed: bool
    reasons: tuple[str, ...]


def judge(gate: GateRecipe, held_out: float | None, damage: Damage | None) -> GateVerdict:
    """held_out: share of held-out checks passed. A figure that was not measured passes no threshold."""
    drop = None if damage is None or damage.accuracy_change is None else -damage.accuracy_change
    bounds = [
        ("held_out", held_out, gate.min_held_out, False),
        ("kl_drift", damage and damage.kl_drift, gate.max_kl_drift, True),
        ("accuracy_drop", drop, gate.max_accuracy_drop, True),
        ("abstention", damage and damage.abstention, gate.min_abstention, False),
    ]
    reasons = []
    for name, got, bound, is_upper in bounds:
        if bound is None:
            continue
        wanted = f"wanted at {'most' if is_upper else 'least'} {bound:g}"
        if got is None:
            reasons.append(f"{name} was not measured, {wanted}")
        elif (got > bound) if is_upper else (got < bound):
            reasons.append(f"got {name} {got:.4g}, {wanted}")
    return GateVerdict(not reasons, tuple(reasons))


def require_passed(manifest: Manifest, where: str) -> None:
    """Raises: ArtifactError for a prefix that no gate let through."""
    verdict: dict[str, Any] = manifest.verification.get("gate") or {}
    if not verdict.get("passed"):
        reasons = "; ".join(verdict.get("reasons", [])) or "it was never put to a gate"
        raise ArtifactError(f"{where}: prefix {manifest.digest} has not passed the publish gate: {reasons}")
