"""Recipes whose scores vary with their seeds and with the cases at once: how far two lie apart, and how sure a mean is.

Seeds are nested in recipes and crossed with cases, so a mean's variance has a part of the seeds and a part of the cases; the
noise of single answers is in both and is counted once. A few seeds tell little of their own scatter, so that it is taken
together over recipes, in proportion to m (1 - m), and never below a recipe's own. Cases get two pseudo-cases at the ends of the
scale (Agresti and Min 2005), so that equal answers have no variance of 0.

Arrays are float64 [..., S seeds, C cases] of shares from 0 to 1; leading axes are repetitions, as a simulation has them.
Source: two-source variance with Satterthwaite's degrees of freedom as in Hillis (2007), all pairs as in Tukey and Kramer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t

from lpc_ray.report.statistics.studentized_range import chance, quotient

CONFIDENCE = 0.95
FEW_SEEDS = 1.25  # raises the seeds' part in the degrees of freedom, so that two seeds give 5 % false positives too


@dataclass(frozen=True, slots=True)
class Measured:
    """One recipe. by_case: [..., C], mean over its seeds. Variances [...]: `seeds` of the seeds' means, `answers` of a single
    answer beside what its seed and its case explain. scale: m (1 - m) of the mean m with its pseudo-cases.
    """

    num_seeds: int
    by_case: np.ndarray
    seeds: np.ndarray
    answers: np.ndarray
    scale: np.ndarray

    @property
    def num_cases(self) -> int:
        return self.by_case.shape[-1]

    @property
    def mean(self) -> np.ndarray:
        return self.by_case.mean(-1)


@dataclass(frozen=True, slots=True)
class Scatter:
    """What all recipes of a table say of their seeds [...]: mean variance, variance per m (1 - m), its degrees of freedom."""

    mean: np.ndarray
    ratio: np.ndarray
    freedom: np.ndarray


@dataclass(frozen=True, slots=True)
class Estimate:
    """value, its standard error and degrees of freedom, all [...]."""

    value: np.ndarray
    error: np.ndarray
    freedom: np.ndarray


def measured(shares: np.ndarray) -> Measured:
    """shares: [..., S, C] with S >= 2 and C >= 1."""
    num_seeds, num_cases = shares.shape[-2:]
    by_case, by_seed = shares.mean(-2), shares.mean(-1)
    mean = by_case.mean(-1)
    rest = shares - by_seed[..., None] - by_case[..., None, :] + mean[..., None, None]
    middle = (by_case.sum(-1) + 1) / (num_cases + 2)
    return Measured(
        num_seeds=num_seeds,
        by_case=by_case,
        seeds=by_seed.var(-1, ddof=1),
        answers=(rest**2).sum((-2, -1)) / max((num_seeds - 1) * (num_cases - 1), 1),
        scale=middle * (1 - middle),
    )


def scatter(recipes: Sequence[Measured]) -> Scatter:
    freedom = np.array([one.num_seeds - 1.0 for one in recipes])
    weights = np.stack([one.scale for one in recipes], -1) * freedom
    squares = np.stack([one.seeds for one in recipes], -1) * freedom
    return Scatter(
        mean=squares.sum(-1) / freedom.sum(),
        ratio=squares.sum(-1) / weights.sum(-1),
        freedom=weights.sum(-1) ** 2 / (weights**2 / freedom).sum(-1),
    )


def gap(first: Measured, second: Measured, common: Scatter) -> Estimate:
    """By how much the first mean is higher, on the same cases in the same order."""
    per_case = first.by_case - second.by_case
    least = [np.maximum(common.mean, common.ratio * one.scale) for one in (first, second)]
    return _estimate(per_case.mean(-1), [first, second], least, _case_variance(per_case, (-1.0, 1.0)), common)


def p_value(found: Estimate, num_recipes: int) -> Any:
    """Two-sided, of no gap, after correction for all pairs of `num_recipes` (Tukey), whichever of them was picked."""
    ratio = np.abs(found.value) / found.error
    if num_recipes == 2:
        return 2 * t.sf(ratio, found.freedom)  # the same, and faster
    return np.vectorize(chance)(2**0.5 * ratio, num_recipes, found.freedom)


def gap_interval(found: Estimate, num_recipes: int) -> tuple[np.ndarray, np.ndarray]:
    """95 %, of all pairs at once: it leaves out 0 where `p_value` is below 0.05."""
    reach = critical(num_recipes, found.freedom) * found.error
    return found.value - reach, found.value + reach


def critical(num_recipes: int, freedom: np.ndarray) -> Any:
    """How many standard errors a gap must have to be more than noise."""
    if num_recipes == 2:
        return t.ppf(0.5 + CONFIDENCE / 2, freedom)
    return np.vectorize(quotient)(1 - CONFIDENCE, num_recipes, freedom) / 2**0.5


def mean_interval(recipe: Measured, common: Scatter) -> tuple[np.ndarray, np.ndarray]:
    """95 %, of the recipe's mean over further seeds and cases; Wilson's, on as many answers as the variance is worth."""
    least = [common.ratio * recipe.scale]
    found = _estimate(recipe.mean, [recipe], least, _case_variance(recipe.by_case, (0.0, 1.0)), common)
    return wilson_bounds(found.value, recipe.scale / found.error**2, found.freedom)


def share_interval(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 %, of the mean of independent shares from 0 to 1, [..., N] with N >= 2: of tasks, say."""
    num_shares = shares.shape[-1]
    middle = (shares.sum(-1) + 1) / (num_shares + 2)
    worth = middle * (1 - middle) / _case_variance(shares, (0.0, 1.0))
    return wilson_bounds(shares.mean(-1), worth, np.asarray(num_shares - 1.0))


def wilson_bounds(share: np.ndarray, number: np.ndarray, freedom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of a share of `number` answers, with Student's quantile in place of the normal one."""
    square = t.ppf(0.5 + CONFIDENCE / 2, freedom) ** 2 / number
    middle = (share + square / 2) / (1 + square)
    reach = np.sqrt(square * share * (1 - share) + square**2 / 4) / (1 + square)
    return np.maximum(middle - reach, 0.0), np.minimum(middle + reach, 1.0)


def _estimate(
    value: np.ndarray,
    recipes: Sequence[Measured],
    least: Sequence[np.ndarray],
    case_variance: np.ndarray,
    common: Scatter,
) -> Estimate:
    """least: for each recipe, what its seeds' variance is taken to be where its own is smaller."""
    num_cases = recipes[0].num_cases
    answers = sum(one.answers / (one.num_seeds * num_cases) for one in recipes)
    scattered = sum(np.maximum(one.seeds, low) / one.num_seeds for one, low in zip(recipes, least, strict=True))
    seed_part = np.maximum(scattered, answers)
    variance = seed_part + np.maximum(case_variance - answers, 0)
    weight = np.minimum(FEW_SEEDS * seed_part / variance, 1)
    freedom = 1 / (weight**2 / common.freedom + (1 - weight) ** 2 / max(num_cases - 1, 1))
    return Estimate(value, np.sqrt(variance), freedom)


def _case_variance(per_case: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    """Of a mean over cases [..., C], with one pseudo-case at each end of the scale."""
    num_cases = per_case.shape[-1] + 2
    mean = (per_case.sum(-1) + sum(ends)) / num_cases
    squares = (per_case**2).sum(-1) + sum(end**2 for end in ends)
    return (squares - num_cases * mean**2) / (num_cases - 1) / num_cases
