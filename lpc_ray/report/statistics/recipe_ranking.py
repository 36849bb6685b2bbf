"""Recipes set against each other with all their seeds: the mean over seeds and cases, and what of a difference is noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from lpc_ray.report.english import counted
from lpc_ray.report.ledger.ledger import ArmRecord, best_artifact
from lpc_ray.report.significance import NOISE_P_VALUE, SCORED
from lpc_ray.report.statistics.seed_spread import SEED_FIELDS, shared_artifacts
from lpc_ray.report.statistics.two_sources import (
    Estimate,
    Measured,
    Scatter,
    gap,
    gap_interval,
    mean_interval,
    measured,
    p_value,
    scatter,
)

Case = tuple[str, str]  # id, protocol
RecipeKey = tuple[str, str | None, str | None, int | None]


@dataclass(frozen=True, slots=True)
class RecipeScore:
    """One recipe over its finished seeds, on the cases that all of them have a pass or fail for. Scores are fractions.

    num_seeds: independent ones; where arms cross several kinds of seeds, those of the kind with fewest.
    low, high: the 95 % interval of `mean` over further seeds and cases; None for one seed, which tells of no other.
    seed_low, seed_high: the seeds' scores. shared: `seed_spread.shared_artifacts` of the recipe's arms.
    behind: by how much the leader's mean is higher on the cases that both have, with its interval; p_value: of no such gap,
    seeds and cases both varying (`two_sources`), after correction for all pairs of recipes. None for the leader, for one
    seed and where the two share no case.
    """

    recipe: str
    num_seeds: int
    num_cases: int
    mean: float
    low: float | None
    high: float | None
    seed_low: float
    seed_high: float
    shared: str = ""
    behind: float | None = None
    behind_low: float | None = None
    behind_high: float | None = None
    p_value: float | None = None

    @property
    def is_noise(self) -> bool | None:
        return None if self.p_value is None else self.p_value >= NOISE_P_VALUE


@dataclass(frozen=True, slots=True)
class Recipe:
    """shares: [S, C] over `cases`: how much of its checks each seed passed."""

    cases: tuple[Case, ...]
    shares: np.ndarray
    score: RecipeScore

    def on(self, cases: Sequence[Case]) -> Measured:
        place = {case: number for number, case in enumerate(self.cases)}
        return measured(self.shares[:, [place[case] for case in cases]])


@dataclass(frozen=True)
class RecipeTable:
    """scores: the best mean of those with two seeds or more first, then those with one. compared: the former."""

    scores: tuple[RecipeScore, ...]
    compared: Mapping[RecipeKey, Recipe]
    common: Scatter | None

    def p_value(self, first: RecipeKey, second: RecipeKey) -> float | None:
        """Of two recipes having one mean; None where one of them has one seed, or they share no case."""
        if self.common is None or not {first, second} <= set(self.compared):
            return None
        found = _gap(self.compared[first], self.compared[second], self.common)
        return None if found is None else float(p_value(found, len(self.compared)))


def recipe_table(arms: Sequence[ArmRecord]) -> RecipeTable:
    """Of recipes with a seed that was trained to the end and answered cases."""
    groups: dict[RecipeKey, list[ArmRecord]] = {}
    for arm in arms:
        if arm.status == "finished":
            groups.setdefault(recipe_key(arm), []).append(arm)
    found = {key: one for key, group in groups.items() if (one := _recipe(key, group))}
    found = dict(sorted(found.items(), key=lambda item: -item[1].score.mean))
    compared = {key: one for key, one in found.items() if len(one.shares) > 1}
    alone = [one.score for key, one in found.items() if key not in compared]
    common = scatter([one.on(one.cases) for one in compared.values()]) if compared else None
    return RecipeTable((*_judged(compared, common), *alone), compared, common)


def _judged(compared: Mapping[RecipeKey, Recipe], common: Scatter | None) -> list[RecipeScore]:
    if common is None:
        return []
    best, judged = next(iter(compared.values())), []
    for one in compared.values():
        low, high = mean_interval(one.on(one.cases), common)
        score = replace(one.score, low=float(low), high=float(high))
        behind = None if one is best else _gap(best, one, common)
        if behind is not None:
            least, most = gap_interval(behind, len(compared))
            score = replace(
                score,
                behind=float(behind.value),
                behind_low=float(least),
                behind_high=float(most),
                p_value=float(p_value(behind, len(compared))),
            )
        judged.append(score)
    return judged


def _gap(first: Recipe, second: Recipe, common: Scatter) -> Estimate | None:
    """On the cases that both have; None without one."""
    cases = sorted(set(first.cases) & set(second.cases))
    return gap(first.on(cases), second.on(cases), common) if cases else None


def recipe_key(arm: ArmRecord) -> RecipeKey:
    return (arm.induction, arm.objective, arm.initializer, arm.num_tokens)


def _recipe(key: RecipeKey, group: Sequence[ArmRecord]) -> Recipe | None:
    """None where the arms have no case in common."""
    scores = [_by_case(arm) for arm in group]
    cases = tuple(sorted(set(scores[0]).intersection(*scores[1:])))
    if not cases:
        return None
    by_seed: dict[int | None, list[list[float]]] = {}
    kind = _independent(group)
    for number, (arm, score) in enumerate(zip(group, scores, strict=True)):
        seed = getattr(arm, kind) if kind else number
        by_seed.setdefault(seed, []).append([score[case] for case in cases])
    shares = np.array([np.mean(answers, axis=0) for answers in by_seed.values()])
    means = [fmean(answers) for answers in shares]
    induction, objective, initializer, num_tokens = key
    score = RecipeScore(
        recipe=f"{induction}, {objective}, {initializer}, {counted(num_tokens or 0, 'prefix token')}",
        num_seeds=len(shares),
        num_cases=len(cases),
        mean=fmean(means),
        low=None,
        high=None,
        seed_low=min(means),
        seed_high=max(means),
        shared=shared_artifacts([best_artifact(arm) for arm in group]),
    )
    return Recipe(cases, shares, score)


def _independent(group: Sequence[ArmRecord]) -> str | None:
    """The kind of seed by which arms are independent: of those that vary, the one with fewest values. None: all arms are."""
    values = {name: len({getattr(arm, name) for arm in group}) for name in SEED_FIELDS}
    varying = {name: number for name, number in values.items() if number > 1}
    return min(varying, key=lambda name: varying[name]) if varying else None


def _by_case(arm: ArmRecord) -> dict[Case, float]:
    counted_ones = (outcome for outcome in arm.held_out if outcome.verdict in SCORED and outcome.total)
    return {(outcome.case_id, outcome.protocol): outcome.passed / outcome.total for outcome in counted_ones}
