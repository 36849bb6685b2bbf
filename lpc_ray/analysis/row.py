"""One line of the ledger: what an arm or a baseline scored on the held-out cases and what it cost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lpc_ray.analysis.significance import SCORED, wilson
from lpc_ray.records import Outcome


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured is a number; what was not is None, never 0.

    passed, total, score: the checks of the held-out cases with verdict pass or fail; score_low and score_high bound the
    95 % Wilson interval. uncounted_verdicts: how many held-out cases got any other verdict.
    prompt_tokens, generated_tokens, request_tokens: means over the counted held-out requests, the last one their sum.
    training_seconds: of the whole arm, not only up to `best_step`. digest: of the artifact at `best_step`.
    """

    kind: Literal["arm", "baseline"]
    name: str
    status: str
    induction: str | None = None
    objective: str | None = None
    initializer: str | None = None
    seed: int | None = None
    initializer_seed: int | None = None
    induction_seed: int | None = None
    num_tokens: int | None = None
    passed: int | None = None
    total: int | None = None
    score: float | None = None
    score_low: float | None = None
    score_high: float | None = None
    uncounted_verdicts: dict[str, int] | None = None
    best_step: int | None = None
    tune_passed: int | None = None
    tune_total: int | None = None
    figures: dict[str, float] | None = None
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    request_tokens: float | None = None
    placeholders_counted: Literal["no"] = "no"
    prefix_bytes: int | None = None
    induction_seconds: float | None = None
    teacher_tokens: int | None = None
    trace_rows: int | None = None
    dropped_rows: dict[str, int] | None = None
    target_tokens_seen: int | None = None
    training_seconds: float | None = None
    digest: str | None = None


def held_out_fields(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The fields of a Row that come from held-out outcomes; those of unscored cases are a count only."""
    scored = [outcome for outcome in outcomes if outcome.verdict in SCORED]
    uncounted = dict(Counter(outcome.verdict for outcome in outcomes if outcome.verdict not in SCORED))
    passed, total = sum(outcome.passed for outcome in scored), sum(outcome.total for outcome in scored)
    if not total:
        return {"uncounted_verdicts": uncounted}
    low, high = wilson(passed, total)
    prompt = sum(outcome.prompt_tokens for outcome in scored) / len(scored)
    generated = sum(outcome.generated_tokens for outcome in scored) / len(scored)
    return {
        "passed": passed,
        "total": total,
        "score": passed / total,
        "score_low": low,
        "score_high": high,
        "uncounted_verdicts": uncounted,
        "prompt_tokens": prompt,
        "figures": mean_figures(scored),
        "generated_tokens": generated,
        "request_tokens": prompt + generated,
    }


def mean_figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """What a verifier kind tells beside the verdict (LongHealth: lenient, tagged, cap_hit), each as a mean over outcomes."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.figures)
    told = {name: [one.figures[name] for one in outcomes if name in one.figures] for name in names}
    return {name: sum(values) / len(values) for name, values in told.items()}
