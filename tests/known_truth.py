"""Answers drawn from a known truth: recipes, their seeds and cases, all varying; and how often the statistics err on them."""

import functools

import numpy as np
from scipy.stats import norm

from lpc_ray.report.statistics.two_sources import Estimate, Measured, critical, gap, measured, scatter

FREEDOMS = np.array([1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 9, 14, 25, 60, 400.0])


def answers(rng, num_runs, seeds, num_cases, mean, deviation, own_cases=0.15, shared_cases=0.4) -> list[np.ndarray]:
    """One [num_runs, S, num_cases] of 0 and 1 per recipe.

    seeds: S of each recipe. mean: expected share, of all or of each recipe; deviation: of a seed's expected share around it
    (Beta). A case is as hard for all recipes by `shared_cases` of its variance and for one by `own_cases`; the rest is the
    single answer's.
    """
    means, deviations = (np.broadcast_to(np.asarray(one, float), len(seeds)) for one in (mean, deviation))
    hard = rng.normal(0, shared_cases**0.5, (num_runs, 1, num_cases))
    drawn = []
    for number, share, spread in zip(seeds, means, deviations, strict=True):
        level = np.full((num_runs, number), share)
        if spread and 0 < share < 1:
            size = share * (1 - share) / spread**2 - 1
            level = rng.beta(share * size, (1 - share) * size, (num_runs, number))
        own = rng.normal(0, own_cases**0.5, (num_runs, 1, num_cases))
        single = rng.normal(0, (1 - own_cases - shared_cases) ** 0.5, (num_runs, number, num_cases))
        drawn.append((hard + own + single < norm.ppf(level)[..., None]).astype(float))
    return drawn


@functools.cache
def _critical(num_recipes: int) -> np.ndarray:
    return np.asarray(critical(num_recipes, FREEDOMS))


def is_more_than_noise(found: Estimate, num_recipes: int) -> np.ndarray:
    """Whether p < 0.05, [num_runs]; the critical value is interpolated, which is a thousand times faster than p."""
    return np.abs(found.value) > np.interp(found.freedom, FREEDOMS, _critical(num_recipes)) * found.error


def wrong_calls(shares: list[np.ndarray], equals: int | None = None) -> float:
    """In how many of the runs the leader is called better, by more than noise, than a recipe that is as good.

    equals: the first so many recipes are equal; None: all.
    """
    recipes: list[Measured] = [measured(one) for one in shares]
    common, equals = scatter(recipes), len(recipes) if equals is None else equals
    lead = np.argmax([one.mean for one in recipes], 0)
    wrong = np.zeros(len(lead), bool)
    for first in range(equals):
        for second in range(equals):
            if first != second:
                found = gap(recipes[first], recipes[second], common)
                wrong |= (lead == first) & is_more_than_noise(found, len(recipes))
    return float(wrong.mean())
