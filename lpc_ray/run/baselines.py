"""What stands beside the arms: prompts with and without the source, untrained prefixes, LPCs that existed before."""

from typing import Any

from lpc_ray.artifacts.manifest import Manifest
from lpc_ray.artifacts.store import stored_manifest
from lpc_ray.records import digest_of
from lpc_ray.report.ledger.ledger import BaselineRecord
from lpc_ray.run.costs import recorded_costs
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.plan import Plan
from lpc_ray.verification.outcomes import Answerer, OutcomeStore


def prompt_baselines(plan: Plan) -> list[tuple[str, int, Answerer]]:
    """(name, tokens, answerer) of the baselines that need no prefix: no context, whole document, document cut to P.

    A document that leaves no room in the engine's context for question and reply has no row, one shorter than P is not cut.
    """
    found = [("no_context", 0, Answerer("no_context"))]
    max_tokens = plan.config.recipe.verification.max_tokens
    replies = max_tokens + plan.benchmark.added_tokens(max_tokens)
    if plan.longest_prompt(plan.document_text) + replies <= plan.config.cluster.engine.max_model_len:
        found.append(("full_document", 0, _with_document(plan, "full_document", None)))
    for size in shorter_sizes(plan):
        found.append(("truncated", size, _with_document(plan, f"truncated-{size}", size)))
    return found


def untrained(plan: Plan) -> list[tuple[str, int]]:
    """(initializer, tokens) of the untrained prefixes that are baselines: the text prefill, and what the recipe adds."""
    names = dict.fromkeys(("first_k", *plan.config.recipe.initializers.training_free))
    sizes = {arm.num_tokens for arm in plan.arms}
    return [(name, size) for name in names for size in (sorted(sizes) if name != "first_k" else shorter_sizes(plan))]


def untrained_name(initializer: str) -> str:
    return "text_prefill" if initializer == "first_k" else initializer


def untrained_key(plan: Plan, initializer: str, num_tokens: int) -> str:
    """Under which name the run remembers an untrained prefix."""
    recipe = plan.config.recipe
    parts = [recipe.model.model_dump(mode="json"), recipe.prefix.model_dump(mode="json"), plan.source_ids, num_tokens]
    return f"{initializer}-{digest_of(*parts, plan.starts.digests.get(initializer))}"


def library_handles(plan: Plan) -> tuple[str, ...]:
    prefixes = plan.config.recipe.baseline_prefixes
    return prefixes.handles if prefixes is not None else ()


def library_key(plan: Plan, handle: str) -> str:
    """Under which name the run remembers the LPC that a handle of `recipe.baseline_prefixes` pointed to."""
    assert plan.config.recipe.baseline_prefixes is not None
    return f"handle-{digest_of(plan.config.recipe.baseline_prefixes.store, handle)}"


def baseline_digest(run: RunFolder, key: str) -> str | None:
    """The artifact that the run remembers under `key`."""
    path = run.baseline(key)
    return run.store.read_json(path)["digest"] if run.store.exists(path) else None


def set_baseline_digest(run: RunFolder, key: str, digest: str) -> None:
    run.store.write_json(run.baseline(key), {"digest": digest})


def baseline_records(plan: Plan, run: RunFolder) -> list[BaselineRecord]:
    """The baselines that have been verified, prompts first."""
    outcomes = OutcomeStore(run.outcomes(plan.protocol), plan.protocol)

    def record(name: str, size: int, answerer: str, prefix_bytes: int = 0, **costs: Any) -> BaselineRecord:
        tune, held_out = outcomes.get(answerer, "tune") or (), outcomes.get(answerer, "held_out") or ()
        return BaselineRecord(name, size, prefix_bytes, tune, held_out, **costs)

    found = [record(name, size, answerer.name) for name, size, answerer in prompt_baselines(plan)]
    for name, size in untrained(plan):
        if (manifest := _remembered(run, untrained_key(plan, name, size))) is not None:
            found.append(record(untrained_name(name), manifest.num_tokens, manifest.digest, manifest.num_bytes))
    for handle in library_handles(plan):
        if (manifest := _remembered(run, library_key(plan, handle))) is not None:
            costs = recorded_costs(manifest)
            found.append(record(handle, manifest.num_tokens, manifest.digest, manifest.num_bytes, costs=costs))
    return [baseline for baseline in found if baseline.tune or baseline.held_out]


def _remembered(run: RunFolder, key: str) -> Manifest | None:
    digest = baseline_digest(run, key)
    return None if digest is None else stored_manifest(run.artifacts, digest)


def shorter_sizes(plan: Plan) -> list[int]:
    """The prefix sizes that the source is long enough for."""
    return sorted({arm.num_tokens for arm in plan.arms if arm.num_tokens <= len(plan.source_ids)})


def _with_document(plan: Plan, name: str, num_tokens: int | None) -> Answerer:
    text = plan.document_text
    if num_tokens is not None:
        text = plan.tokenizer.decode(plan.source_ids[:num_tokens])
    return Answerer(f"{name}-{digest_of(text)}", document=text)
