"""When the sweep stops an arm early, and what is then recorded of it."""

import math
from typing import Any

from scipy.optimize import brentq

ROUNDING = 1e-9


def tolerated(cutoff: float, num_cases: int, errors: float) -> float:
    """The score below which an arm falls short of `cutoff`, both shares of `num_cases` cases, by more than noise.

    Noise is `errors` standard errors of the difference by Newcombe's hybrid of two Wilson intervals, which are never empty:
    where everything is right, one case less is no reason to stop. 0 errors: `cutoff` itself. NaN stays NaN.
    Source: Newcombe, Statistics in Medicine 17 (1998) 873-890, method 10.
    """
    share = min(max(cutoff, 0.0), 1.0) if not math.isnan(cutoff) else math.nan
    if math.isnan(share) or share == 0 or errors == 0:
        return share
    below = share - _wilson(share, num_cases, errors)[0]

    def excess(score: float) -> float:
        return share - score - math.hypot(below, _wilson(score, num_cases, errors)[1] - score)

    if excess(0.0) <= 0:
        return 0.0
    root: Any = brentq(excess, 0.0, share)
    return root - ROUNDING


def _wilson(share: float, number: int, errors: float) -> tuple[float, float]:
    square = errors**2 / number
    middle = (share + square / 2) / (1 + square)
    reach = math.sqrt(square * share * (1 - share) + square**2 / 4) / (1 + square)
    return middle - reach, middle + reach


def ended(reported_step: int, last_step: int) -> str:
    """How an arm ended whose last report was of `reported_step`, whatever else is stored of it: a score of another protocol may
    have let it train on.
    """
    return "finished" if reported_step >= last_step else "stopped"
