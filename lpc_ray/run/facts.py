"""What was run, for the head of a report."""

from collections.abc import Callable
from typing import Any

from lpc_ray.run.plan import Plan
from lpc_ray.sources.folder import in_words

_DOUBTS = 10  # shown in a report's head


def run_facts(plan: Plan, when: Callable[[], str]) -> dict[str, Any]:
    """What was run, for the head of the report."""
    config, recipe = plan.config, plan.config.recipe
    return {
        "document": ", ".join(document.name for document in plan.documents),
        **({"left out of the source": "; ".join(in_words(plan.left_out))} if plan.left_out else {}),
        **({"doubtful: held-out questions in the source": doubts_in_words(plan.doubts)} if plan.doubts else {}),
        "document tokens": len(plan.source_ids),
        "model": recipe.model.id,
        "dtype": recipe.model.dtype,
        "verifier": recipe.verification.kind,
        "cases": f"{_cases(plan)}; greedy, at most {recipe.verification.max_tokens} tokens",
        "training": f"{recipe.training.steps} steps of {recipe.training.batch_tokens} tokens, lr {recipe.training.lr:g} "
        f"(keys × {recipe.training.key_lr_factor:g}), {recipe.training.warmup_steps} warm-up steps, cosine to "
        f"{recipe.training.final_lr_fraction:.0%}, clip {recipe.training.clip_norm:g}",
        "stopping": f"ASHA on the tune score from step {recipe.stopping.grace_steps}, tolerance "
        f"{recipe.stopping.tolerance_errors:g} standard errors",
        "workers": f"{config.cluster.training.workers} × ZeRO-{config.cluster.training.zero_stage}, "
        f"{config.cluster.engine.replicas} engine replica(s)",
        "recipe fingerprint": plan.fingerprint,
        "protocol": plan.protocol,
        "made": when(),
    }


def doubts_in_words(doubts: list[str]) -> str:
    """The first of the doubtful cases, and how many more there are."""
    more = [f"and {len(doubts) - _DOUBTS} more"] if len(doubts) > _DOUBTS else []
    return "; ".join([*doubts[:_DOUBTS], *more])


def _cases(plan: Plan) -> str:
    """How many cases; where an answer is a fact, also how many facts, for cases that ask for one fact are not independent."""
    split = {name: [case for case in plan.cases if case.split == name] for name in ("tune", "held_out")}
    counts = f"{len(split['tune'])} to tune and stop by, {len(split['held_out'])} held out"
    if plan.config.recipe.verification.kind != "short_answer":
        return counts
    tune, held_out = ({case.answers for case in cases} for cases in split.values())
    shared = len(held_out & tune)
    return f"{counts}, which ask for {len(held_out)} answers, {shared} of them asked for in other words while tuning"
