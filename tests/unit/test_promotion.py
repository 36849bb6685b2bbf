"""The rule by which families go from the focused task to the strata."""

from pathlib import Path

import pytest

from lpc_ray.config.suite import PromotionRule
from lpc_ray.errors import DataError
from lpc_ray.report.results.read import read_results
from lpc_ray.suite.promotion import promote

SCORES = {"ss": [0.6, 0.5], "bo": [0.9, 0.3], "csb": [0.7, 0.7], "raw": [None, 0.1], "ar": [None]}


def promoted(scores=SCORES, **rule) -> list[str]:
    return [decision.family for decision in promote(scores, PromotionRule(**rule)) if decision.is_promoted]


def reason(family, **rule) -> str:
    return next(decision.reason for decision in promote(SCORES, PromotionRule(**rule)) if decision.family == family)


def test_without_bounds_every_family_with_a_score_goes_on_best_first():
    assert promoted() == ["bo", "csb", "ss", "raw"]
    assert reason("ar") == "no seed has a score"


def test_a_family_must_beat_the_named_one_and_never_beats_itself():
    assert promoted(beats="ss") == ["bo", "csb"]
    assert reason("ss", beats="ss") == "0.600 does not beat ss, 0.600"
    assert promoted(beats="ss", margin=0.2) == ["bo"]


def test_the_mean_punishes_a_family_that_only_one_seed_carries():
    assert promoted(beats="ss", by="mean") == ["csb", "bo"]
    assert promoted(beats="ss", max_spread=0.2) == ["csb"]
    assert reason("bo", max_spread=0.2) == "a spread of 0.600 over seeds is above max_spread 0.2"


def test_bounds_on_score_seeds_and_number_hold():
    assert promoted(min_score=0.7) == ["bo", "csb"]
    assert promoted(min_seeds=2) == ["bo", "csb", "ss"]
    assert reason("raw", min_seeds=2) == "1 of the 2 seeds wanted have a score"
    assert promoted(most=1) == ["bo"]
    assert reason("csb", most=1) == "only the best 1 are promoted"


@pytest.mark.parametrize("margin", [0.1, 0.2, 0.3])
def test_a_margin_that_is_met_exactly_is_met(margin):
    """0.6 against 0.5 by 0.1, and every other pair of tenths: one of three is a float below the margin."""
    tenths = round(10 * margin)
    for bar in range(0, 11 - tenths):
        scores = {"bar": [bar / 10], "at": [(bar + tenths) / 10], "under": [(bar + tenths - 1) / 10]}
        assert promoted(scores, beats="bar", margin=margin) == ["at"]


def test_means_and_spreads_are_compared_as_the_counts_they_come_from():
    """The mean of 0.1, 0.2 and 0.3 is 0.2 and 0.6 - 0.5 is 0.1, which floats deny."""
    tenths = {"ss": [0.1, 0.2, 0.3], "bo": [0.7, 0.6, 0.8]}
    assert promoted(tenths, by="mean", min_score=0.7) == ["bo"]
    assert promoted(tenths, max_spread=0.2) == ["bo", "ss"]
    assert promoted({"ss": [1 / 3, 2 / 3], "bo": [0.5]}, by="mean", beats="bo") == []
    nineteenths = {"a": [12 / 19], "b": [7 / 19]}
    assert (
        promoted(nineteenths, beats="b", margin=0.26) == ["a"] and promoted(nineteenths, beats="b", margin=0.27) == []
    )


def test_who_goes_on_gets_the_seeds_and_the_others_the_rest():
    seeds = {d.family: d.seeds for d in promote(SCORES, PromotionRule(beats="ss", seeds=(0, 1, 2), rest_seeds=(0,)))}
    assert (seeds["bo"], seeds["ss"], seeds["ar"]) == ((0, 1, 2), (0,), (0,))
    assert promote(SCORES, PromotionRule(beats="ss"))[-1].seeds == ()


def test_a_baseline_may_set_the_bar_and_is_never_promoted_itself():
    decisions = promote(SCORES, PromotionRule(beats="no_context", most=3), {"no_context": [0.65]})
    assert [decision.family for decision in decisions if decision.is_promoted] == ["bo", "csb"]
    assert "no_context" not in {decision.family for decision in decisions}


def test_a_rule_that_names_nobody_is_refused():
    for nobody in ("r", "ar"):
        with pytest.raises(DataError, match=f"got no score of '{nobody}' to beat"):
            promote(SCORES, PromotionRule(beats=nobody))


def test_published_families_that_went_to_the_strata_with_three_seeds_are_those_that_beat_self_study():
    """BO and CSB: 48 checks each in the scale run, three times the 16 of a single seed."""
    folder = Path(__file__).parents[2] / "data" / "published"
    runs = {found.run: found for found in read_results(sorted(folder.glob("h100-*.json")))}
    scores = {row.induction or row.name: [row.score] for row in runs["h100-pi-stabilization"].rows}
    assert promoted(scores, beats="ss") == ["bo", "csb"]
    assert {row.induction for row in runs["h100-pi-scale"].rows if row.total == 48} == {"bo", "csb"}
