"""Two answerers on the same cases, in words: arms against baselines, and arms that differ in one recipe field."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from lpc_ray.report.english import counted, listed
from lpc_ray.report.ledger.ledger import ArmRecord, BaselineRecord, best_artifact
from lpc_ray.report.ledger.row import Row
from lpc_ray.report.significance import NOISE_P_VALUE, SCORED, Paired, holm, paired, passes
from lpc_ray.report.statistics.recipe_ranking import recipe_key, recipe_table
from lpc_ray.report.statistics.seed_spread import shared_artifacts
from lpc_ray.report.words.wording import baseline_words, p_words, score_words, seed_words

FIELDS = ("induction", "objective", "initializer", "num_tokens")
BRACKETS = (
    "In brackets: how many cases only the first and how many only the second got right, and the p value of the exact "
    "McNemar test, corrected for the number of comparisons under this heading (Holm)."
)
SEEDS = ("seed", "initializer_seed", "induction_seed")


def against_baselines(arms: Sequence[ArmRecord], rows: Sequence[Row], baselines: Sequence[BaselineRecord]) -> list[str]:
    """Each arm's held-out score (rows: one for each), set against every baseline that answered some of the same cases."""
    tests = [[paired(passes(arm.held_out), passes(baseline.held_out)) for baseline in baselines] for arm in arms]
    p_values = iter(holm([test.p_value for line in tests for test in line if test is not None]))
    return [
        _against(
            arm,
            row,
            [
                (baseline, replace(test, p_value=next(p_values)))
                for baseline, test in zip(baselines, line, strict=True)
                if test is not None
            ],
        )
        for arm, row, line in zip(arms, rows, tests, strict=True)
    ]


def _against(arm: ArmRecord, row: Row, tests: Sequence[tuple[BaselineRecord, Paired]]) -> str:
    better: list[str] = []
    worse: list[str] = []
    noise: list[str] = []
    for baseline, test in tests:
        place = noise if test.is_noise else better if test.first_only > test.second_only else worse
        place.append(f"{baseline_words(baseline)} ({_odds(test, len(_answered(arm)))})")
    clauses = [
        *([f"better than {listed(better)}"] if better else []),
        *([f"worse than {listed(worse)}"] if worse else []),
        *([f"not distinguished from {listed(noise)}"] if noise else []),
    ]
    return f"{arm.name} {score_words(row)}{': ' if clauses else ''}{'; '.join(clauses)}."


def recipe_choices(arms: Sequence[ArmRecord]) -> list[str]:
    """One sentence per recipe field and pair of values, with all seeds on which both were run. Whether a difference is noise
    is the word of `recipe_table`, in which seeds and cases both vary.
    """
    found: dict[tuple[str, str, str, tuple], list[tuple[ArmRecord, ArmRecord, Paired]]] = {}
    for first, second in combinations(arms, 2):
        field = only_difference(first, second)
        test = paired(passes(first.held_out), passes(second.held_out)) if field else None
        if field and test:
            rest = tuple(getattr(first, name) for name in FIELDS if name != field)
            key = (field, getattr(first, field), getattr(second, field), rest)
            found.setdefault(key, []).append((first, second, test))
    if not found and len(arms) > 1:
        return ["No two finished arms differ in exactly one recipe field on equal seeds, so no choice is judged."]
    table = recipe_table(arms)
    return [
        _choice(*key, tests=tests, p_value=table.p_value(*map(recipe_key, tests[0][:2])))
        for key, tests in found.items()
    ]


def only_difference(first: ArmRecord, second: ArmRecord) -> str | None:
    """The one recipe field in which two arms differ, or None where a verdict would not be about one field alone.

    Both must have finished the same number of planned steps on equal seeds, and their scored held-out cases must be the
    same cases under the same protocols.
    """
    if (first.status, second.status) != ("finished", "finished") or first.planned_steps != second.planned_steps:
        return None
    if any(getattr(first, seed) != getattr(second, seed) for seed in SEEDS):
        return None
    if _answered(first) != _answered(second):
        return None
    differing = [field for field in FIELDS if getattr(first, field) != getattr(second, field)]
    return differing[0] if len(differing) == 1 else None


def _answered(arm: ArmRecord) -> set[tuple[str, str]]:
    return {(outcome.case_id, outcome.protocol) for outcome in arm.held_out if outcome.verdict in SCORED}


def _choice(
    field: str,
    first: str,
    second: str,
    rest: tuple,
    tests: Sequence[tuple[ArmRecord, ArmRecord, Paired]],
    p_value: float | None,
) -> str:
    parts = [
        f"{seed_words(one)}: {test.first_passed} against {test.second_passed} of {counted(test.cases, 'case')} "
        f"({test.first_only} to {test.second_only})"
        for one, _, test in tests
    ]
    verdict = "One seed of a side cannot tell the choice from the seed"
    if p_value is not None:
        words = "Inside the noise" if p_value >= NOISE_P_VALUE else "More than noise"
        verdict = f"{words} over seeds and cases ({p_words(p_value)})"
    fixed = ", ".join(_value(name, value) for name, value in zip(_others(field), rest, strict=True))
    sides = ((first, [one for one, _, _ in tests]), (second, [other for _, other, _ in tests]))
    shared = [f"{value}: {same}" for value, arms in sides if (same := shared_artifacts([*map(best_artifact, arms)]))]
    caveat = f" But {'; '.join(shared)}." if shared else ""
    return f"{field} {first} against {second}, with {fixed}: {'; '.join(parts)}. {verdict}.{caveat}"


def _others(field: str) -> list[str]:
    return [name for name in FIELDS if name != field]


def _value(field: str, value: str | int) -> str:
    return counted(value, "prefix token") if isinstance(value, int) else f"{field} {value}"


def _odds(test: Paired, expected_cases: int | None = None) -> str:
    """How the cases fell that only one of the two got right, and out of how many where that is not all of them."""
    cases = "" if expected_cases in (None, test.cases) else f", on the {counted(test.cases, 'case')} both answered"
    return f"{test.first_only} to {test.second_only}, {p_words(test.p_value)}{cases}"
