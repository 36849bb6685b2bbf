"""One line of the ledger: what an arm or a baseline scored on the held-out cases and what it cost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lpc_ray.records import Outcome, Tally
from lpc_ray.report.ledger.figures import Costs, OffSource, RecipeAxes
from lpc_ray.report.significance import SCORED, passes, wilson

Convention = Literal["yes", "no", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Named:
    """What a row is called, and the run and task it belongs to: rows of two runs are never pooled, and rows of two tasks are
    ranked apart.
    """

    kind: Literal["arm", "baseline"]
    name: str
    status: str
    run: str | None = None
    task: str | None = None


@dataclass(frozen=True, kw_only=True)
class Row(OffSource, Costs, RecipeAxes, Named):  # fields stand in files from the last base to the first
    """What was measured is a number; what was not is None, never 0.

    passed, total, score: the checks of the held-out cases with verdict pass or fail; score_low and score_high bound the
    95 % Wilson interval. A count whose meaning is unknown is shown, and has no score. uncounted_verdicts: how many
    held-out cases got any other verdict. cases: case → whether it passed, where each is one check; None where only counts
    are known. is_best_of_several: the best of several seeds or arms, of which nothing else is known.
    prompt_tokens, generated_tokens, request_tokens: means over the counted held-out requests, the last one their sum.
    request_seconds: their mean, with as many requests at once as the engine takes. placeholders_counted: whether
    prompt_tokens include the prefix's.
    teacher_pass_seconds: of passes that training had the teacher make, measured; 0 where there were none because the
    teacher's log-probs came with the traces, whose generation is their cost.
    training_seconds: of the whole arm, not only up to `best_step`. digest: of the artifact at `best_step`.
    """

    source_tokens: int | None = None
    passed: int | None = None
    total: int | None = None
    score: float | None = None
    score_low: float | None = None
    score_high: float | None = None
    uncounted_verdicts: dict[str, int] | None = None
    cases: dict[str, bool] | None = None
    is_best_of_several: bool = False
    best_step: int | None = None
    tune_passed: int | None = None
    tune_total: int | None = None
    figures: dict[str, float] | None = None
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    request_tokens: float | None = None
    request_seconds: float | None = None
    placeholders_counted: Convention = "unknown"
    teacher_pass_seconds: float | None = None
    training_seconds: float | None = None
    digest: str | None = None
    note: str = ""

    @property
    def tune(self) -> str | None:
        """`19/24` of the tune cases at the best step."""
        return f"{self.tune_passed}/{self.tune_total}" if self.tune_total else None

    @property
    def prefix_tokens(self) -> int | None:
        """Of the prefix: 0 for a row that has none, whatever stands in its prompt."""
        return 0 if self.prefix_bytes == 0 else self.num_tokens

    @property
    def offline_seconds(self) -> float | None:
        """Trace generation + teacher passes + training; None when one of them is unknown."""
        parts = (self.trace_generation_seconds, self.teacher_pass_seconds, self.training_seconds)
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None


def off_source_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows that were measured off their source, or put to a gate."""
    return [row for row in rows if row.kl_drift is not None or row.gate is not None]


def score_fields(passed: int, total: int) -> dict[str, Any]:
    """The fields of a Row that follow from a count."""
    low, high = wilson(passed, total)
    return {"passed": passed, "total": total, "score": passed / total, "score_low": low, "score_high": high}


def held_out_fields(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The fields of a Row that come from held-out outcomes; those of unscored cases are a count only."""
    scored = [outcome for outcome in outcomes if outcome.verdict in SCORED]
    uncounted = dict(Counter(outcome.verdict for outcome in outcomes if outcome.verdict not in SCORED))
    tally = Tally.of(outcomes)
    if not tally.total:
        return {"uncounted_verdicts": uncounted}
    prompt = sum(outcome.prompt_tokens for outcome in scored) / len(scored)
    generated = sum(outcome.generated_tokens for outcome in scored) / len(scored)
    return {
        **score_fields(tally.passed, tally.total),
        "uncounted_verdicts": uncounted,
        "cases": passes(outcomes) if all(outcome.total == 1 for outcome in scored) else None,
        "prompt_tokens": prompt,
        "figures": mean_figures(scored),
        "generated_tokens": generated,
        "request_tokens": prompt + generated,
        "request_seconds": sum(outcome.seconds for outcome in scored) / len(scored),
    }


def mean_figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """What a verifier kind measures beside the verdict (LongHealth: lenient, tagged, cap_hit), each as a mean over outcomes."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.figures)
    figures = {name: [one.figures[name] for one in outcomes if name in one.figures] for name in names}
    return {name: sum(values) / len(values) for name, values in figures.items()}


def arm_key(row: Row) -> tuple:
    """What makes two rows of a run and task one arm, whatever they are called: the recipe, else the name."""
    recipe = (row.induction, row.objective, row.initializer)
    seeds = (row.seed, row.initializer_seed, row.induction_seed)
    return (row.kind, *(recipe if any(recipe) else (row.name,)), *seeds)
