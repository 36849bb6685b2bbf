"""Verification outside the sweep: what stands beside the arms, their held-out scores, and what they damage off their source."""

from concurrent.futures import ThreadPoolExecutor, as_completed

import ray

from lpc_ray.adapters.pipeline.context import RunContext
from lpc_ray.adapters.pipeline.stage import stage
from lpc_ray.adapters.ray.sweep import score_of
from lpc_ray.adapters.ray.tasks import measure_drift
from lpc_ray.artifacts.handles import set_handle
from lpc_ray.artifacts.library import adopt
from lpc_ray.model.identity import model_identity
from lpc_ray.report.ledger.row import mean_figures
from lpc_ray.run.arms import Arm
from lpc_ray.run.baselines import (
    baseline_digest,
    library_handles,
    library_key,
    prompt_baselines,
    set_baseline_digest,
    untrained,
    untrained_key,
    untrained_name,
)
from lpc_ray.run.damage import damage_of, off_source_verifier, put_to_gate, set_damage
from lpc_ray.run.scores import keep_score
from lpc_ray.storage import open_store
from lpc_ray.verification import off_source
from lpc_ray.verification.base import unscored_words
from lpc_ray.verification.outcomes import Answerer

Wanted = list[tuple[str, Answerer, str]]  # what to call it in the terminal, what to verify, on which split


@stage()
def verify_baselines(context: RunContext) -> None:
    """Verify the bare model, the document in the prompt, untrained prefixes, and the LPCs the recipe names."""
    plan = context.plan
    for line in plan.benchmark.readiness():
        context.say("verify", line)
    answerers = [(name, size, answerer) for name, size, answerer in prompt_baselines(plan)]
    answerers += [
        (untrained_name(initializer), size, _untrained_prefix(context, initializer, size))
        for initializer, size in untrained(plan)
    ]
    answerers += [(handle, 0, _adopted(context, handle)) for handle in library_handles(plan)]
    named = [(f"{name} {size or ''}".strip(), answerer) for name, size, answerer in answerers]
    _verify(context, [(name, answerer, split) for name, answerer in named for split in ("tune", "held_out")])


@stage()
def verify_held_out(context: RunContext) -> None:
    """Name each arm's best step by a handle, and verify it on the held-out cases, which nothing before this reads."""
    wanted = []
    for arm in context.plan.arms:
        best = context.best_step(arm)
        if best is not None:
            set_handle(context.run.store, arm.name, best.digest)
            wanted.append((f"{arm.name} step {best.step}", context.prefix(best.digest, arm.num_tokens), "held_out"))
    _verify(context, wanted)


@stage()
def gate_arms(context: RunContext) -> None:
    """Measure what each arm's best step does off its source, put it to the gate, and write both into its artifact."""
    if context.recipe.off_source is None and context.recipe.gate is None:
        return
    for arm in context.plan.arms:
        best = context.best_step(arm)
        if best is None:
            continue
        damage = _damage(context, arm, best.digest)
        verdict = put_to_gate(context.plan, context.run, best.digest, damage)
        if verdict is not None:
            context.say("gate", f"{arm.name}: " + ("passed" if verdict.passed else "; ".join(verdict.reasons)))


def _damage(context: RunContext, arm: Arm, digest: str) -> off_source.Damage | None:
    """The stored damage of an LPC, else measured; None where the recipe names no off-source cases."""
    plan, run, machines = context.plan, context.run, context.machines
    stored, benchmark = damage_of(plan, run, digest), plan.off_source
    if stored is not None or benchmark is None:
        return stored
    verifier = off_source_verifier(plan, run)
    bare = verifier.verify(Answerer("no_context"), off_source.SPLIT, machines.pool.generate)
    answerer = context.prefix(digest, arm.num_tokens)
    assert answerer.prefix is not None
    with_prefix = verifier.verify(answerer, off_source.SPLIT, machines.pool.generate)
    asks = [verifier.ask(Answerer("no_context"), case) for case in benchmark.cases]
    texts = [(list(ask.messages), outcome.reply) for ask, outcome in zip(asks, bare, strict=True)]
    drift, tokens = ray.get(
        machines.beside_training(measure_drift).remote(machines.group_setup(), answerer.prefix.folder, texts)
    )
    damage = set_damage(plan, run, digest, off_source.damage(benchmark, bare, with_prefix, drift, tokens))
    context.say("damage", f"{arm.name}: {damage.words()}")
    return damage


def _verify(context: RunContext, wanted: Wanted) -> None:
    """Verify where no outcome is stored, print each score as it is known, and record a prefix's in its manifest.

    Held-out cases measure what a request costs, so their batches have the engine for themselves; the others share it.
    """
    splits = {case.split for case in context.plan.cases}
    verifier = context.verifier
    once = {(answerer.name, split): (label, answerer, split) for label, answerer, split in wanted if split in splits}
    known = [one for one in once.values() if verifier.is_verified(one[1].name, one[2])]
    for _, answerer, split in known:
        keep_score(context.run, answerer, split, verifier.outcomes)
    wanted = [one for one in once.values() if one not in known]
    if not wanted:
        return
    pool = context.machines.pool
    context.say("verify", f"{len(wanted)} scores to find, {pool.replicas} engine(s)")
    timed = [one for one in wanted if one[2] == "held_out"]
    for together in ([one for one in wanted if one not in timed], *([one] for one in timed)):
        threads = ThreadPoolExecutor(max_workers=max(1, len(together)))
        try:
            asked = {
                threads.submit(verifier.verify, answerer, split, pool.generate): (label, answerer, split)
                for label, answerer, split in together
            }
            for done in as_completed(asked):
                outcomes, (label, answerer, split) = done.result(), asked[done]
                keep_score(context.run, answerer, split, verifier.outcomes)
                context.machines.check_training()
                score = score_of(outcomes)
                beside = "".join(f", {name} {value:.2f}" for name, value in mean_figures(outcomes).items())
                counts = f"{score['passed']}/{score['total']} ({score['score']:.0%})"
                unscored = f"; {words}" if (words := unscored_words(outcomes)) else ""
                context.say("verify", f"{label}, {split}: {counts}{beside}{unscored}")
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # those still waiting end with the engines


def _untrained_prefix(context: RunContext, initializer: str, num_tokens: int) -> Answerer:
    key = untrained_key(context.plan, initializer, num_tokens)
    digest = baseline_digest(context.run, key)
    if digest is None:
        digest = ray.get(context.machines.publish_untrained(initializer, num_tokens))
        set_baseline_digest(context.run, key, digest)
    return context.prefix(digest, num_tokens)


def _adopted(context: RunContext, handle: str) -> Answerer:
    """An LPC of the library that the recipe names, copied into the run."""
    prefixes, model = context.recipe.baseline_prefixes, context.recipe.model
    assert prefixes is not None
    identity = model_identity(context.machines.model, model.revision)
    manifest = adopt(open_store(prefixes.store), handle, context.run.store, identity, context.cache)
    set_baseline_digest(context.run, library_key(context.plan, handle), manifest.digest)
    return context.prefix(manifest.digest, manifest.num_tokens)
