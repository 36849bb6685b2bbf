"""What the table shows, in words, and what is inside the noise.

An arm and a baseline are called different only by the exact McNemar test on cases that both answered, two recipes only where
seeds and cases together do not explain it (p < 0.05, corrected for the number of comparisons). Two recipes get a sentence only
where they differ in exactly one field (`verdicts.only_difference`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lpc_ray.report.english import counted, listed
from lpc_ray.report.ledger.ledger import ArmRecord, BaselineRecord, best_step, rows
from lpc_ray.report.ledger.row import Row
from lpc_ray.report.statistics.seed_spread import spreads
from lpc_ray.report.words.verdicts import BRACKETS, against_baselines, recipe_choices
from lpc_ray.report.words.wording import baseline_words, score_words


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence, and the heading it stands under."""

    topic: str
    text: str


def findings(arms: Sequence[ArmRecord], baselines: Sequence[BaselineRecord]) -> list[Finding]:
    """In reading order: scores, comparisons, seeds, what ended early, what is not counted."""
    table = rows(arms, baselines)
    baseline_rows, arm_rows = table[: len(baselines)], table[len(baselines) :]
    topics = {
        "Scores": [*map(_baseline_score, baselines, baseline_rows), *_leaders(arms)],
        "Arms against baselines": _against(arms, arm_rows, baselines),
        "Recipe choices": recipe_choices(arms),
        "Seeds": [spread.words() for spread in spreads(arm_rows)],
        "Arms that ended early": [_ended_early(arm) for arm in arms if arm.status != "finished"],
        "Shown, not counted": [_uncounted(row) for row in table if row.uncounted_verdicts],
    }
    return [Finding(topic, text) for topic, texts in topics.items() for text in texts]


def _baseline_score(baseline: BaselineRecord, row: Row) -> str:
    return f"With {baseline_words(baseline)}, the model {score_words(row)}."


def _against(arms: Sequence[ArmRecord], arm_rows: Sequence[Row], baselines: Sequence[BaselineRecord]) -> list[str]:
    sentences = against_baselines(arms, arm_rows, baselines)
    is_compared = any(arm.held_out for arm in arms) and any(baseline.held_out for baseline in baselines)
    return [BRACKETS, *sentences] if is_compared else sentences


def _leaders(arms: Sequence[ArmRecord]) -> list[str]:
    best = {arm.name: step for arm in arms if (step := best_step(arm.steps))}
    if not best:
        return ["No arm has been verified yet."]
    top = max(step.passed for step in best.values())
    if top == 0:
        return ["No arm passed any tune case at any step: nothing was learned that the cases show."]
    learned_nothing = [name for name, step in best.items() if step.step == 0]
    leaders = [f"{name} (step {step.step})" for name, step in best.items() if step.passed == top]
    total = next(step.total for step in best.values() if step.passed == top)
    whose = "that of" if len(leaders) == 1 else "shared by"
    sentences = [f"The best score on the tune cases, {top} of {total}, is {whose} {listed(leaders)}."]
    if learned_nothing:
        sentences.append(f"Training made no better than the untrained start of {listed(learned_nothing)} (step 0).")
    return sentences


def _ended_early(arm: ArmRecord) -> str:
    if arm.diagnosis is not None:
        step, why = arm.diagnosis
        return f"{arm.name}: {arm.status} at step {step} ({why}); trained for less, it is compared with no other arm."
    ended = "was stopped" if arm.status == "stopped" else "is unfinished"
    if not arm.steps:
        return f"{arm.name} {ended} before its first verification."
    last = arm.steps[-1]
    where = f"at step {last.step} of {arm.planned_steps} with {last.passed} of {counted(last.total, 'tune case')} right"
    return f"{arm.name} {ended} {where}; trained for less, it is compared with no other arm."


def _uncounted(row: Row) -> str:
    verdicts = row.uncounted_verdicts or {}
    total = sum(verdicts.values())
    kinds = listed([f"{count} {verdict}" for verdict, count in verdicts.items()])
    return f"{row.name}: {counted(total, 'held-out case')} {'is' if total == 1 else 'are'} not in its score ({kinds})."
