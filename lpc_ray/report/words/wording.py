"""Formatting for sentences: counts that agree in number, shares, lists, and the names that a reader knows."""

from collections.abc import Sequence

from lpc_ray.report.english import counted, listed
from lpc_ray.report.ledger.ledger import ArmRecord, BaselineRecord
from lpc_ray.report.ledger.row import Row


def unscored_words(row: Row) -> str:
    """`1 case not scored (verifier_error)`, `5 cases not scored (3 invalid, 2 empty)`; empty where all were."""
    verdicts = row.uncounted_verdicts or {}
    if not verdicts:
        return ""
    kinds = [verdict if len(verdicts) == 1 else f"{count} {verdict}" for verdict, count in verdicts.items()]
    return f"{counted(sum(verdicts.values()), 'case')} not scored ({', '.join(kinds)})"


def denominator_words(rows: Sequence[Row]) -> str:
    """That the scored rows of one run and task are not on the same checks; empty where their totals are equal."""
    totals = sorted({row.total for row in rows if row.score is not None and row.total})
    counts = listed([f"{total:,}" for total in totals])
    return (
        f"Denominators differ ({counts} checks), so these rows are not on the same checks." if len(totals) > 1 else ""
    )


def p_words(p_value: float) -> str:
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def score_words(row: Row) -> str:
    """`answers 41 of 60 held-out cases (68.3 %, 95 % interval 55.8 to 78.7 %)`, or that nothing was scored."""
    if row.score is None or row.score_low is None or row.score_high is None or row.total is None:
        return "has no scored held-out case"
    interval = f"{100 * row.score_low:.1f} to {100 * row.score_high:.1f} %"
    cases = counted(row.total, "held-out case")
    return f"answers {row.passed} of {cases} ({100 * row.score:.1f} %, 95 % interval {interval})"


def baseline_words(baseline: BaselineRecord) -> str:
    """What a baseline is, as it stands after `than` or `from`."""
    tokens = counted(baseline.num_tokens, "token")
    words = {
        "no_context": "no context",
        "full_document": "the whole document in the prompt",
        "truncated": f"the document cut to {tokens}",
        "text_prefill": f"an untrained prefix of {tokens} of text",
    }
    return words.get(baseline.name, f"the prefix {baseline.name} of {tokens}")


def seed_words(arm: ArmRecord) -> str:
    """`seed 0`, and the other two seeds where they are not 0."""
    others = (("initializer", arm.initializer_seed), ("induction", arm.induction_seed))
    return ", ".join([f"seed {arm.seed}", *(f"{name} seed {seed}" for name, seed in others if seed)])
