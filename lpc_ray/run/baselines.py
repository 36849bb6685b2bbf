"""What stands beside the arms: prompts with and without the source, untrained prefixes, LPCs that existed before."""

from lpc_ray.artifacts.handles import ARTIFACTS
from lpc_ray.artifacts.store import stored_manifest
from lpc_ray.records import digest_of
from lpc_ray.report.ledger.ledger import BaselineRecord
from lpc_ray.run.plan import Plan
from lpc_ray.storage import Store
from lpc_ray.verification.outcomes import OutcomeStore, Subject

TEMPLATE_TOKENS = 128


def prompt_baselines(plan: Plan) -> list[tuple[str, int, Subject]]:
    """(name, tokens, subject) of the baselines that need no prefix: no context, whole document, document cut to P.

    A document that leaves no room in the engine's context for question and reply has no row, one shorter than P is not cut.
    """
    found = [("no_context", 0, Subject("no_context"))]
    max_tokens = plan.config.recipe.verification.max_tokens
    taken = plan.longest_question + max_tokens + plan.benchmark.added_tokens(max_tokens) + TEMPLATE_TOKENS
    if len(plan.source_ids) + taken <= plan.config.cluster.engine.max_model_len:
        found.append(("full_document", 0, _told(plan, "full_document", None)))
    for size in shorter_sizes(plan):
        found.append(("truncated", size, _told(plan, f"truncated-{size}", size)))
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
    told = [recipe.model.model_dump(mode="json"), recipe.prefix.model_dump(mode="json"), plan.source_ids, num_tokens]
    return f"{initializer}-{digest_of(*told, plan.starts.digests.get(initializer))}"


def library_handles(plan: Plan) -> tuple[str, ...]:
    prefixes = plan.config.recipe.prefixes
    return prefixes.handles if prefixes is not None else ()


def library_key(plan: Plan, handle: str) -> str:
    """Under which name the run remembers the LPC that a handle of `recipe.prefixes` pointed to."""
    assert plan.config.recipe.prefixes is not None
    return f"handle-{digest_of(plan.config.recipe.prefixes.store, handle)}"


def baseline_digest(run: Store, key: str) -> str | None:
    """The artifact that the run remembers under `key`."""
    path = f"baselines/{key}.json"
    return run.read_json(path)["digest"] if run.exists(path) else None


def set_baseline_digest(run: Store, key: str, digest: str) -> None:
    run.write_json(f"baselines/{key}.json", {"digest": digest})


def baseline_records(plan: Plan, run: Store) -> list[BaselineRecord]:
    """The baselines that have been verified, prompts first."""
    outcomes = OutcomeStore(run, plan.protocol)

    def record(name: str, size: int, subject: str, prefix_bytes: int) -> BaselineRecord:
        tune, held_out = outcomes.get(subject, "tune") or (), outcomes.get(subject, "held_out") or ()
        return BaselineRecord(name, size, prefix_bytes, tune, held_out)

    found = [record(name, size, subject.name, 0) for name, size, subject in prompt_baselines(plan)]
    keys = [(untrained_name(name), untrained_key(plan, name, size)) for name, size in untrained(plan)]
    for name, key in keys + [(handle, library_key(plan, handle)) for handle in library_handles(plan)]:
        digest = baseline_digest(run, key)
        if digest is not None:
            manifest = stored_manifest(run / ARTIFACTS, digest)
            found.append(record(name, manifest.num_tokens, digest, manifest.num_bytes))
    return [baseline for baseline in found if baseline.tune or baseline.held_out]


def shorter_sizes(plan: Plan) -> list[int]:
    """The prefix sizes that the source is long enough for."""
    return sorted({arm.num_tokens for arm in plan.arms if arm.num_tokens <= len(plan.source_ids)})


def _told(plan: Plan, name: str, num_tokens: int | None) -> Subject:
    text = plan.document_text
    if num_tokens is not None:
        text = plan.tokenizer.decode(plan.source_ids[:num_tokens])
    return Subject(f"{name}-{digest_of(text)}", document=text)
