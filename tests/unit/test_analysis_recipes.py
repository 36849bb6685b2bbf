"""Recipes over their seeds: figures worked out by hand, the correction from its published example."""

import re
from dataclasses import replace

import pytest
from scipy.stats import t

from lpc_ray.records import Outcome
from lpc_ray.report.ledger.ledger import rows
from lpc_ray.report.significance import holm
from lpc_ray.report.statistics.recipe_ranking import recipe_table
from lpc_ray.report.statistics.seed_spread import shared_artifacts, spreads
from tests.unit.test_analysis_report import arm, write


def answers(marks: str, prefix: str = "case") -> tuple[Outcome, ...]:
    """1 pass, 0 fail, - no verdict."""
    verdicts = {"1": "pass", "0": "fail", "-": "verifier_error"}
    return tuple(
        Outcome(f"{prefix}-{i}", verdicts[mark], "", int(mark == "1"), 1, "r", 40, 10, 0.1, "greedy")
        for i, mark in enumerate(marks)
    )


def trained(digest: str) -> tuple:
    return tuple(replace(step, digest=f"{digest}-{step.step}") for step in arm().steps)


def recipe_scores(arms) -> tuple:
    return recipe_table(arms).scores


def seeds(induction: str, *marks: str, **changes) -> list:
    return [
        arm(
            f"{induction}-{seed}",
            **{"steps": trained(f"{induction}-{seed}"), **changes},
            induction=induction,
            seed=seed,
            held_out=answers(one),
        )
        for seed, one in enumerate(marks)
    ]


def test_holm_equals_the_values_worked_out_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_a_case_counts_with_the_mean_over_the_seeds():
    (found,) = recipe_scores(seeds("ss", "1100", "1000"))
    assert (found.num_seeds, found.num_cases) == (2, 4)
    assert (found.mean, found.seed_low, found.seed_high) == (0.375, 0.25, 0.5)
    assert found.low is not None and found.high is not None and 0 <= found.low < 0.375 < found.high <= 1
    assert found.p_value is None and found.is_noise is None


def test_the_leader_is_set_against_every_other_recipe():
    first, second, third = recipe_scores(
        [*seeds("raw", "000000", "000000"), *seeds("ss", "111111", "111111"), *seeds("r", "111110", "111110")]
    )
    assert [first.recipe.split(",")[0], second.recipe.split(",")[0], third.recipe.split(",")[0]] == ["ss", "r", "raw"]
    assert third.behind == 1.0 and not third.is_noise
    assert second.behind == pytest.approx(1 / 6) and second.is_noise
    assert second.behind_low is not None and second.behind_low < 0
    # With one pseudo-case at +1 and one at -1, eight gaps of 1 have mean 0.8 and variance 3.6 / 9, a mean of ten 0.04.
    eight = recipe_scores([*seeds("raw", "0" * 8, "0" * 8), *seeds("ss", "1" * 8, "1" * 8)])
    assert eight[1].p_value == pytest.approx(2 * t.sf(1 / 0.04**0.5, 7)) and not eight[1].is_noise


def test_equal_recipes_are_noise():
    assert recipe_scores([*seeds("raw", "10", "10"), *seeds("ss", "10", "10")])[1].p_value == 1.0


def test_one_seed_is_told_and_not_compared():
    pair, alone = recipe_scores([*seeds("ss", "11"), *seeds("r", "10", "10")])
    assert (pair.num_seeds, alone.num_seeds, alone.mean) == (2, 1, 1.0)
    assert (alone.low, alone.behind, alone.p_value, alone.is_noise) == (None,) * 4
    assert "one seed: not compared" in write([*seeds("ss", "11"), *seeds("r", "10", "10")])[1]


def test_seeds_that_were_stopped_have_no_part():
    (found,) = recipe_scores([*seeds("ss", "11"), *seeds("ss", "00", status="stopped")])
    assert (found.num_seeds, found.mean) == (1, 1.0)
    assert recipe_scores([]) == () == recipe_scores(seeds("ss", "--", "--"))


def test_arms_of_one_trace_set_are_no_independent_seeds():
    """Two induction seeds with three training seeds each are two draws of what the traces decide."""
    arms = [
        replace(one, name=f"{one.name}-d{induction_seed}", induction_seed=induction_seed)
        for induction_seed, marks in enumerate(["1111", "1000"])
        for one in seeds("ss", marks, marks, marks)
    ]
    (found,) = recipe_scores(arms)
    assert (found.num_seeds, found.mean, found.seed_low, found.seed_high) == (2, 0.625, 0.25, 1.0)


def test_only_cases_that_every_seed_has_a_verdict_for_count_and_only_common_ones_are_compared():
    (found,) = recipe_scores(seeds("ss", "1-00", "110-"))
    assert (found.num_cases, found.mean) == (2, 0.5)
    other = [replace(one, held_out=answers("1100", "other")) for one in seeds("raw", "", "")]
    leader, apart = recipe_scores([*seeds("ss", "1110", "1110"), *other])
    assert leader.p_value is None and apart.p_value is None and apart.behind is None
    _, partly = recipe_scores([*seeds("ss", "1110", "1110"), *seeds("raw", "100-", "1000")])
    assert (partly.num_cases, partly.mean, partly.behind) == (3, pytest.approx(1 / 3), pytest.approx(2 / 3))


def test_report_and_page_hold_the_recipes():
    files, page = write([*seeds("ss", "1" * 8, "1" * 8), *seeds("raw", "0" * 8, "0" * 8)])
    recipes = files["recipes"]
    assert [one["mean"] for one in recipes] == [1.0, 0.0] and recipes[1]["p_value"] == pytest.approx(2 * t.sf(5, 7))
    assert "Recipes over their seeds" in page and "more than noise" in page
    assert "Recipes over their seeds" not in write([arm(held_out=())])[1]


def test_many_sentences_are_folded_away():
    few, many = (
        write([one for name in names for one in seeds(name, "10", "01")])[1]
        for names in (["ss", "r"], ["ss", "r", "bo", "csb", "ar", "raw", "curated"])
    )
    assert "sentences</summary>" not in few
    assert re.search(r"<details><summary>\d\d sentences</summary>", many)


def untrained_seeds(induction: str, marks: str) -> list:
    """Three seeds of which step 0, one artifact, was best."""
    start = tuple(replace(step, digest="start", passed=3 if step.step == 0 else 0) for step in arm().steps)
    return seeds(induction, marks, marks, marks, steps=start)


def test_seeds_that_share_one_artifact_are_told_wherever_their_scores_are():
    arms = [*seeds("ss", "1" * 8, "1" * 8, "1" * 7 + "0"), *untrained_seeds("raw", "0" * 8)]
    files, page = write(arms)
    words = " ".join(page.split())
    shared = "3 seeds, 1 artifact: step 0 was best"
    assert [one["shared"] for one in files["recipes"]] == ["", shared]
    assert any(f"raw, ntp, sci, 128 prefix tokens: 0.0 % ({shared})" in text for text in files["findings"])
    assert any(text.endswith(f" But raw: {shared}.") for text in files["findings"])
    assert words.count(shared) == 4
    (spread,) = [one for one in spreads(rows(arms, [])) if one.shared]
    assert (spread.scores, spread.distinct, spread.deviation) == ((0.0,) * 3, (0.0,), None)


@pytest.mark.parametrize(
    ("artifacts", "words"),
    [
        ([("a", 0), ("b", 8)], ""),
        ([(None, None), (None, None)], ""),
        ([("a", 0), ("a", 0), ("b", 8)], "3 seeds, 2 artifacts: step 0 was best for 2 of them"),
        ([("a", 0), ("a", 4)], "2 seeds, 1 artifact"),
    ],
)
def test_shared_artifacts_are_counted(artifacts, words):
    assert shared_artifacts(artifacts) == words
