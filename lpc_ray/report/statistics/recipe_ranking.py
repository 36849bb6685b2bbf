"""Recipes set against each other with all their seeds: the mean over seeds and cases, and what of a difference is noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from scipy.stats import permutation_test

from lpc_ray.report.english import counted
from lpc_ray.report.ledger.ledger import ArmRecord, best_artifact
from lpc_ray.report.significance import BOOTSTRAP_SEED, NOISE_P_VALUE, SCORED, bootstrap_mean, holm
from lpc_ray.report.statistics.seed_spread import shared_artifacts

RESAMPLES = 9999
Shares = Mapping[tuple[str, str], float]  # (case, protocol) → share of its checks that passed, mean over the seeds


@dataclass(frozen=True, slots=True)
class RecipeScore:
    """One recipe over its finished seeds, on the cases that all of them have a pass or fail for. Scores are fractions.

    low, high: the 95 % bootstrap interval of `mean` over cases, the seeds as they are. seed_low, seed_high: the seeds' scores.
    shared: `seeds.shared_artifacts` of the recipe's seeds, empty where each has an artifact of its own.
    behind: by how much the leader's mean is higher, with its interval; p_value: the paired permutation test of that over
    cases, after Holm's correction for all recipes of the table. None for the leader and where cases differ from the leader's.
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


def recipe_scores(arms: Sequence[ArmRecord]) -> list[RecipeScore]:
    """Best mean first; recipes of which two seeds or more were trained to the end and answered the same cases."""
    groups: dict[tuple, list[ArmRecord]] = {}
    for arm in arms:
        if arm.status == "finished":
            groups.setdefault((arm.induction, arm.objective, arm.initializer, arm.num_tokens), []).append(arm)
    found = [(_score(key, group, shares), shares) for key, group in groups.items() if (shares := _shares(group))]
    found.sort(key=lambda one: -one[0].mean)
    return _against_the_leader(found)


def _shares(group: Sequence[ArmRecord]) -> Shares:
    """Empty for one seed, and for seeds without a case in common."""
    scores = [_by_case(arm) for arm in group]
    common = set(scores[0]).intersection(*scores[1:]) if len(scores) > 1 else ()
    return {case: fmean(one[case] for one in scores) for case in sorted(common)}


def _by_case(arm: ArmRecord) -> dict[tuple[str, str], float]:
    counted_ones = (outcome for outcome in arm.held_out if outcome.verdict in SCORED and outcome.total)
    return {(outcome.case_id, outcome.protocol): outcome.passed / outcome.total for outcome in counted_ones}


def _score(key: tuple[str, str, str, int], group: Sequence[ArmRecord], shares: Shares) -> RecipeScore:
    interval = bootstrap_mean(list(shares.values())) or (None, None)
    seeds = [fmean(_by_case(arm)[case] for case in shares) for arm in group]
    induction, objective, initializer, num_tokens = key
    return RecipeScore(
        recipe=f"{induction}, {objective}, {initializer}, {counted(num_tokens, 'prefix token')}",
        num_seeds=len(group),
        num_cases=len(shares),
        mean=fmean(shares.values()),
        low=interval[0],
        high=interval[1],
        seed_low=min(seeds),
        seed_high=max(seeds),
        shared=shared_artifacts([best_artifact(arm) for arm in group]),
    )


def _against_the_leader(found: Sequence[tuple[RecipeScore, Shares]]) -> list[RecipeScore]:
    if not found:
        return []
    (leader, best), *others = found
    judged: list[RecipeScore] = []
    for score, shares in others:
        if set(shares) != set(best):
            judged.append(score)
            continue
        gaps = [best[case] - share for case, share in shares.items()]
        low, high = bootstrap_mean(gaps) or (None, None)
        judged.append(replace(score, behind=fmean(gaps), behind_low=low, behind_high=high, p_value=_sign_test(gaps)))
    tested = [number for number, score in enumerate(judged) if score.p_value is not None]
    corrected = holm([score.p_value for score in judged if score.p_value is not None])
    for number, p_value in zip(tested, corrected, strict=True):
        judged[number] = replace(judged[number], p_value=p_value)
    return [leader, *judged]


def _sign_test(gaps: Sequence[float]) -> float:
    """Two-sided p value of a mean as far from 0 when each case's sign is as likely either way."""
    if not any(gaps):
        return 1.0
    tested = permutation_test(
        (np.asarray(gaps), np.zeros(len(gaps))),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(BOOTSTRAP_SEED),
    )
    return float(tested.pvalue)
