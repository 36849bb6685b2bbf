"""What a prefix does off its source, and the gate's verdict on both sides of it."""

from dataclasses import asdict
from typing import Any

from lpc_ray.artifacts.store import record_verification
from lpc_ray.records import Tally
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.plan import Plan
from lpc_ray.verification.base import protocol_of
from lpc_ray.verification.gate import GateVerdict, judge
from lpc_ray.verification.off_source import Damage
from lpc_ray.verification.outcomes import OutcomeStore, Verifier


def off_source_verifier(plan: Plan, run: RunFolder) -> Verifier:
    recipe = plan.config.recipe
    assert plan.off_source is not None and recipe.off_source is not None, "the recipe measures off-source damage"
    model, max_tokens = recipe.model.model_dump(mode="json"), recipe.off_source.max_tokens
    protocol = protocol_of(plan.off_source, recipe.prompt.system, max_tokens, model, recipe.prompt.rendering())
    return Verifier(plan.off_source, OutcomeStore(run.outcomes(protocol), protocol), recipe.prompt.system, max_tokens)


def damage_of(plan: Plan, run: RunFolder, digest: str) -> Damage | None:
    """The stored off-source figures of a prefix."""
    if plan.off_source is None or not run.store.exists(path := _damage_path(plan, run, digest)):
        return None
    return Damage(**run.store.read_json(path))


def set_damage(plan: Plan, run: RunFolder, digest: str, damage: Damage) -> Damage:
    run.store.write_json(_damage_path(plan, run, digest), asdict(damage))
    return damage


def put_to_gate(plan: Plan, run: RunFolder, digest: str, damage: Damage | None) -> GateVerdict | None:
    """Judge a prefix by both sides, and write damage and verdict into its manifest. None: the recipe has no gate."""
    held_out = Tally.of(OutcomeStore(run.outcomes(plan.protocol), plan.protocol).get(digest, "held_out") or ())
    verification: dict[str, Any] = {} if damage is None else {"off_source": asdict(damage)}
    recipe = plan.config.recipe
    verdict = judge(recipe.gate, held_out.score, damage) if recipe.gate else None
    if recipe.gate and verdict:
        verification["gate"] = {**asdict(verdict), "thresholds": recipe.gate.model_dump(mode="json")}
    record_verification(run.artifacts, digest, plan.protocol, **verification)
    return verdict


def _damage_path(plan: Plan, run: RunFolder, digest: str) -> str:
    return run.off_source(off_source_verifier(plan, run).outcomes.protocol, digest)
