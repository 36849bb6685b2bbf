"""Which families go from the focused task to the strata: a rule written down before the scores are known.

A family's score on the focused task is that of its best verified step, by which the step is chosen as well; the strata's
tasks are others, so that nothing there has been looked at.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def promote(scores: Scores, rule: PromotionRule, baselines: Scores | None = None) -> list[Decision]:
    """One decision per family, best first, families without a score last. A family that `beats` names is not promoted.

    scores: family → the scores of its seeds on the focused task, None for an invalid one. baselines: what else may be named.
    Raises: DataError where `rule.beats` has no score.
    """
    bar, answerers = None, {**(baselines or {}), **scores}
    if rule.beats is not None:
        bar = _score(answerers.get(rule.beats, ()), rule)
        if bar is None:
            known = ", ".join(sorted(answerers)) or "none"
            raise DataError(
                f"promotion: got no score of {rule.beats!r} to beat on the focused task, wanted one of {known}"
            )
    found = {family: _score(seed_scores, rule) for family, seed_scores in scores.items()}
    order = sorted(found, key=lambda family: (found[family] is None, -(found[family] or 0.0), family))
    passing = [family for family in order if _refusal(scores[family], found[family], bar, rule) is None]
    return [_decision(family, scores[family], found[family], bar, rule, passing) for family in order]


def _decision(
    family: str,
    seed_scores: Sequence[float | None],
    score: float | None,
    bar: float | None,
    rule: PromotionRule,
    passing: Sequence[str],
) -> Decision:
    refusal = _refusal(seed_scores, score, bar, rule)
    if refusal is None and rule.most is not None and passing.index(family) >= rule.most:
        refusal = f"only the best {rule.most} are promoted"
    seeds = rule.seeds if refusal is None else rule.rest_seeds
    return Decision(family, tuple(seed_scores), score, refusal is None, seeds, refusal or "meets every bound")


def _refusal(
    seed_scores: Sequence[float | None], score: float | None, bar: float | None, rule: PromotionRule
) -> str | None:
    """Why not, or None."""
    known = [value for value in seed_scores if value is not None]
    if score is None:
        return "no seed has a score"
    if len(known) < rule.min_seeds:
        return f"{len(known)} of the {rule.min_seeds} seeds wanted have a score"
    if score < rule.min_score:
        return f"{score:.3f} is below min_score {rule.min_score:g}"
    if bar is not None and (score <= bar or score - bar < rule.margin):
        by = f", by {rule.margin:g}" if rule.margin else ""
        return f"{score:.3f} does not beat {rule.beats}, {bar:.3f}{by}"
    spread = max(known) - min(known)
    if rule.max_spread is not None and spread > rule.max_spread:
        return f"a spread of {spread:.3f} over seeds is above max_spread {rule.max_spread:g}"
    return None


def _score(seed_scores: Sequence[float | None], rule: PromotionRule) -> float | None:
    known = [value for value in seed_scores if value is not None]
    if not known:
        return None
    return max(known) if rule.by == "best" else statistics.fmean(known)
