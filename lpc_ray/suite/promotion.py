"""Which families go from the focused task to the strata: a rule written down before the scores are known.

A family's score on the focused task is that of its best verified step, by which the step is chosen as well; the strata's
tasks are others, so that nothing there has been looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from lpc_ray.config.shares import as_counted
from lpc_ray.config.suite import PromotionRule
from lpc_ray.errors import DataError


@dataclass(frozen=True, slots=True)
class Decision:
    """One family. `score` is None where no seed has one. `reason`: what decided."""

    family: str
    scores: tuple[float | None, ...]
    score: float | None
    is_promoted: bool
    seeds: tuple[int, ...]
    reason: str


Scores = Mapping[str, Sequence[float | None]]
Shares = Sequence[Fraction | None]


def promote(scores: Scores, rule: PromotionRule, baselines: Scores | None = None) -> list[Decision]:
    """One decision per family, best first, families without a score last. A family that `beats` names is not promoted.

    scores: family → the scores of its seeds on the focused task, None for an invalid one. baselines: what else may be named.
    Raises: DataError where `rule.beats` has no score.
    """
    exact = {family: _exact(seed_scores) for family, seed_scores in scores.items()}
    bar, answerers = None, {**{name: _exact(given) for name, given in (baselines or {}).items()}, **exact}
    if rule.beats is not None:
        bar = _score(answerers.get(rule.beats, ()), rule)
        if bar is None:
            known = ", ".join(sorted(answerers)) or "none"
            raise DataError(
                f"promotion: got no score of {rule.beats!r} to beat on the focused task, wanted one of {known}"
            )
    found = {family: _score(shares, rule) for family, shares in exact.items()}
    order = sorted(found, key=lambda family: (found[family] is None, -(found[family] or 0), family))
    passing = [family for family in order if _refusal(exact[family], found[family], bar, rule) is None]
    return [_decision(family, exact[family], found[family], bar, rule, passing) for family in order]


def _exact(scores: Sequence[float | None]) -> Shares:
    return [None if score is None else as_counted(score) for score in scores]


def _decision(
    family: str,
    seed_scores: Shares,
    score: Fraction | None,
    bar: Fraction | None,
    rule: PromotionRule,
    passing: Sequence[str],
) -> Decision:
    refusal = _refusal(seed_scores, score, bar, rule)
    if refusal is None and rule.most is not None and passing.index(family) >= rule.most:
        refusal = f"only the best {rule.most} are promoted"
    seeds = rule.seeds if refusal is None else rule.rest_seeds
    told = tuple(None if one is None else float(one) for one in (score, *seed_scores))
    return Decision(family, told[1:], told[0], refusal is None, seeds, refusal or "meets every bound")


def _refusal(seed_scores: Shares, score: Fraction | None, bar: Fraction | None, rule: PromotionRule) -> str | None:
    """Why not, or None."""
    known = [value for value in seed_scores if value is not None]
    if score is None:
        return "no seed has a score"
    if len(known) < rule.min_seeds:
        return f"{len(known)} of the {rule.min_seeds} seeds wanted have a score"
    if score < as_counted(rule.min_score):
        return f"{float(score):.3f} is below min_score {rule.min_score:g}"
    if bar is not None and (score <= bar or score - bar < as_counted(rule.margin)):
        by = f", by {rule.margin:g}" if rule.margin else ""
        return f"{float(score):.3f} does not beat {rule.beats}, {float(bar):.3f}{by}"
    spread = max(known) - min(known)
    if rule.max_spread is not None and spread > as_counted(rule.max_spread):
        return f"a spread of {float(spread):.3f} over seeds is above max_spread {rule.max_spread:g}"
    return None


def _score(seed_scores: Shares, rule: PromotionRule) -> Fraction | None:
    known = [value for value in seed_scores if value is not None]
    if not known:
        return None
    return max(known) if rule.by == "best" else sum(known, Fraction()) / len(known)
