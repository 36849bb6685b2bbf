"""What the statistics say of data whose truth is known: false differences, coverage of intervals, and power."""

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom, hypergeom, studentized_range, ttest_ind, tukey_hsd

from lpc_ray.records import Outcome
from lpc_ray.report.ledger.ledger import BaselineRecord, rows
from lpc_ray.report.ledger.row import Row, score_fields
from lpc_ray.report.significance import NOISE_P_VALUE, paired, unpaired, wilson
from lpc_ray.report.statistics.break_even import break_even
from lpc_ray.report.statistics.difference import contrasts
from lpc_ray.report.statistics.initializer_duels import per_document
from lpc_ray.report.statistics.recipe_ranking import recipe_key, recipe_table
from lpc_ray.report.statistics.seed_spread import spreads
from lpc_ray.report.statistics.studentized_range import chance, quotient
from lpc_ray.report.statistics.two_sources import (
    gap,
    gap_interval,
    mean_interval,
    measured,
    p_value,
    scatter,
    share_interval,
)
from lpc_ray.report.words.verdicts import against_baselines, recipe_choices
from tests.known_truth import answers, is_more_than_noise, wrong_calls
from tests.unit.test_analysis_report import arm


@pytest.mark.parametrize(
    ("seeds", "num_runs"),
    [([2, 2], 3000), ([3, 3], 2000), ([2, 5], 2000), ([2, 3, 4, 5], 800), ([3] * 16, 100)],
)
@pytest.mark.parametrize(("num_cases", "mean", "deviation"), [(20, 0.4, 0.05), (66, 0.4, 0.1), (200, 0.1, 0.05)])
def test_equal_recipes_are_called_different_in_one_table_of_twenty_at_most(seeds, num_runs, num_cases, mean, deviation):
    rng = np.random.default_rng(14)
    assert wrong_calls(answers(rng, num_runs, seeds, num_cases, mean, deviation)) <= 0.05


def test_cases_of_equal_recipes_held_fixed_would_be_called_different_far_too_often():
    """What the seeds add: the same answers judged by the cases alone."""
    first, second = answers(np.random.default_rng(1), 1000, [2, 2], 66, 0.4, 0.1)
    per_case = first.mean(1) - second.mean(1)
    alone = np.abs(per_case.mean(1)) > 1.96 * per_case.std(1, ddof=1) / 66**0.5
    assert alone.mean() > 0.2
    assert wrong_calls([first, second]) <= 0.05


def test_recipes_at_the_floor_do_not_make_two_equal_ones_above_it_differ():
    """Two at 36 % scatter by 5 points, fourteen at 0 by none: what these say of scatter is not true of the two."""
    shares = answers(np.random.default_rng(2), 300, [3] * 16, 66, [0.36] * 2 + [0.0] * 14, [0.05] * 2 + [0.0] * 14)
    assert wrong_calls(shares, equals=2) <= 0.05


@pytest.mark.parametrize(
    ("seeds", "advantage", "found"), [([2, 2], 0.3, 0.4), ([3, 3], 0.2, 0.5), ([5, 5], 0.2, 0.85), ([3] * 16, 0.3, 0.6)]
)
def test_a_better_recipe_is_found(seeds, advantage, found):
    means = [0.4 + advantage] + [0.4] * (len(seeds) - 1)
    shares = answers(np.random.default_rng(3), 400 if len(seeds) < 16 else 100, seeds, 66, means, 0.05)
    recipes = [measured(one) for one in shares]
    is_found = is_more_than_noise(gap(recipes[0], recipes[1], scatter(recipes)), len(recipes))
    assert is_found.mean() >= found


@pytest.mark.parametrize("seeds", [[2], [3], [2, 2], [2, 5], [3] * 8])
@pytest.mark.parametrize(("num_cases", "mean", "deviation"), [(20, 0.4, 0.05), (66, 0.1, 0.05), (200, 0.4, 0.1)])
def test_the_interval_of_a_recipes_mean_holds_the_truth(seeds, num_cases, mean, deviation):
    shares = answers(np.random.default_rng(4), 1000, seeds, num_cases, mean, deviation)
    recipes = [measured(one) for one in shares]
    low, high = mean_interval(recipes[0], scatter(recipes))
    assert ((low <= mean) & (mean <= high)).mean() >= 0.94


def test_the_test_is_students_where_only_seeds_vary():
    """Every seed answers all of very many cases alike: what is left is a t test of the seeds' means."""
    first, second = (np.repeat(np.array(means)[:, None], 10**6, 1) for means in ([0.40, 0.50], [0.50, 0.60]))
    recipes = [measured(first), measured(second)]
    found = gap(recipes[1], recipes[0], scatter(recipes))
    expected = ttest_ind([0.50, 0.60], [0.40, 0.50]).pvalue
    assert p_value(found, 2) == pytest.approx(expected, rel=1e-3)
    thirds = [*recipes, measured(first)]
    expected = tukey_hsd([0.4, 0.5], [0.5, 0.6], [0.4, 0.5]).pvalue[0, 1]
    assert p_value(gap(thirds[0], thirds[1], scatter(thirds)), 3) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("number", [2, 3, 16, 60])
@pytest.mark.parametrize("freedom", [1.0, 2.5, 12.0, 300.0])
def test_the_studentized_range_is_scipys(number, freedom):
    for at in (0.5, 3.0, 6.0, 20.0):
        assert chance(at, number, freedom) == pytest.approx(studentized_range.sf(at, number, freedom), abs=1e-7)
    assert chance(quotient(0.05, number, freedom), number, freedom) == pytest.approx(0.05, abs=1e-9)
    assert (chance(0.0, number, freedom), chance(1e9, number, freedom)) == pytest.approx((1.0, 0.0), abs=1e-7)


def test_many_recipes_are_ranked_and_judged_in_seconds():
    shares = answers(np.random.default_rng(13), 1, [3] * 30, 66, 0.5, 0.05)
    arms = [
        arm(f"f{number}-{seed}", induction=f"f{number}", seed=seed, held_out=outcomes(passed))
        for number, one in enumerate(shares)
        for seed, passed in enumerate(one[0])
    ]
    began = time.process_time()
    assert len(recipe_table(arms).scores) == 30 and len(recipe_choices(arms)) == 435
    assert time.process_time() - began < 20


@pytest.mark.parametrize("num_cases", [1, 2])
def test_one_or_two_cases_show_nothing(num_cases):
    arms = [
        arm(f"{name}-{seed}", induction=name, seed=seed, held_out=outcomes([name == "ss"] * num_cases))
        for name in ("ss", "raw")
        for seed in range(3)
    ]
    first, second = recipe_table(arms).scores
    assert second.behind == 1.0 and second.is_noise
    assert first.low is not None and first.high == 1.0 and first.low < 0.5


def test_the_interval_of_a_gap_leaves_out_zero_where_p_is_below_its_bound():
    for advantage in (0.0, 0.2, 0.4):
        shares = answers(np.random.default_rng(5), 2, [3, 3, 2], 40, [0.4 + advantage, 0.4, 0.3], 0.03)
        recipes = [measured(one) for one in shares]
        found = gap(recipes[0], recipes[1], scatter(recipes))
        low, high = gap_interval(found, 3)
        assert ((low > 0) | (high < 0)).tolist() == (p_value(found, 3) < NOISE_P_VALUE).tolist()


TASKS = {
    "all alike": lambda rng, size: (np.clip(0.4 + 0.02 * rng.normal(size=size), 0, 1), 0.4),
    "all or nothing": lambda rng, size: ((rng.random(size) < 0.5).astype(float), 0.5),
    "mostly nothing": lambda rng, size: ((rng.random(size) < 0.1).astype(float), 0.1),
    "a few easy ones": lambda rng, size: (rng.beta(0.1, 0.9, size), 0.1),
    "twelve checks": lambda rng, size: (rng.binomial(12, rng.beta(1, 2, size)) / 12, 1 / 3),
}


@pytest.mark.parametrize("tasks", TASKS)
@pytest.mark.parametrize("num_tasks", [2, 4, 8, 20])
def test_the_interval_over_tasks_holds_the_truth(tasks, num_tasks):
    """A bootstrap over four tasks holds it in 10 to 87 % of runs."""
    shares, truth = TASKS[tasks](np.random.default_rng(6), (4000, num_tasks))
    low, high = share_interval(shares)
    assert ((low <= truth) & (truth <= high)).mean() >= 0.945


@pytest.mark.parametrize("total", [10, 24, 66, 200])
def test_wilsons_interval_holds_the_truth_on_average(total):
    """Exactly, by the binomial law: 95 % on average, never less than 83 %, as is known of it (Agresti and Coull 1998)."""
    truths = np.linspace(0.005, 0.995, 199)
    bounds = np.array([wilson(passed, total) for passed in range(total + 1)])
    chance = binom.pmf(np.arange(total + 1)[:, None], total, truths)
    held = ((bounds[:, :1] <= truths) & (truths <= bounds[:, 1:])) * chance
    assert held.sum(0).mean() >= 0.945 and held.sum(0).min() >= 0.83


def test_mcnemars_test_is_wrong_in_one_of_twenty_at_most():
    """Exactly: of d cases that one of two equals passed, the first passed k with chance C(d, k) / 2^d."""
    for number in range(1, 41):
        wrong = 0.0
        for first_only in range(number + 1):
            cases = {str(case): case < first_only for case in range(number)}
            test = paired(cases, {case: not passed for case, passed in cases.items()})
            assert test is not None
            wrong += (not test.is_noise) * binom.pmf(first_only, number, 0.5)
        assert wrong <= NOISE_P_VALUE + 1e-12


def test_fishers_test_is_wrong_in_one_of_twenty_at_most():
    """Exactly, for every number of passes that two equals share."""
    for passed in range(41):
        counts = np.arange(max(0, passed - 20), min(20, passed) + 1)
        wrong = [unpaired((int(one), 20), (passed - int(one), 20)) < NOISE_P_VALUE for one in counts]
        assert (hypergeom.pmf(counts, 40, passed, 20) * wrong).sum() <= NOISE_P_VALUE + 1e-12


def equal_rows(rng, number: int, num_cases: int = 40, **fields) -> list[Row]:
    hard = rng.random(num_cases)
    found = []
    for index in range(number):
        passed = (rng.random(num_cases) < 0.2 + 0.6 * hard).tolist()
        cases = {str(case): one for case, one in enumerate(passed)}
        scored = score_fields(sum(passed), num_cases)
        found.append(Row(kind="arm", name=f"row-{index}", status="finished", cases=cases, **scored, **fields))
    return found


def test_the_best_of_equal_rows_is_seldom_called_better():
    rng, wrong = np.random.default_rng(7), {True: 0, False: 0}
    for _ in range(60):
        equals = equal_rows(rng, 7)
        for is_paired in wrong:
            (found,) = contrasts([row if is_paired else replace(row, cases=None) for row in equals])
            wrong[is_paired] += bool(found.above)
    assert max(wrong.values()) <= 3


def test_an_arm_as_good_as_the_document_is_seldom_said_to_repay_nothing():
    rng, wrong = np.random.default_rng(8), 0
    spent = {"trace_generation_seconds": 60.0, "teacher_pass_seconds": 0.0, "training_seconds": 40.0}
    for _ in range(80):
        document, *arms = equal_rows(rng, 13, request_seconds=0.1, **spent)
        reference = replace(document, kind="baseline", name="full_document", request_seconds=0.5)
        wrong += any(line.requests is None for line in break_even([reference, *arms]))
    assert wrong <= 4


def outcomes(passed) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(f"case-{case}", "pass" if one else "fail", "", int(one), 1, "r", 40, 10, 0.1, "greedy")
        for case, one in enumerate(passed)
    )


def test_arms_as_good_as_a_baseline_are_seldom_called_better_or_worse():
    rng, wrong = np.random.default_rng(9), 0
    for _ in range(60):
        hard = rng.random(40)
        whole = BaselineRecord("full_document", 0, 0, (), outcomes(rng.random(40) < hard))
        arms = [arm(f"a{number}", held_out=outcomes(rng.random(40) < hard)) for number in range(12)]
        sentences = against_baselines(arms, rows(arms, []), [whole])
        wrong += any("better than" in one or "worse than" in one for one in sentences)
    assert wrong <= 3


def test_two_initializers_that_are_as_good_are_seldom_told_apart():
    """On four documents; seeds scatter by 10 points, and one side has more of them."""
    rng, wrong, undecided = np.random.default_rng(10), 0, 0
    for _ in range(40):
        table = []
        for task in "abcd":
            for name, (shares,) in zip(
                ("first_k", "sci"), ([one] for one in answers(rng, 1, [2, 5], 40, 0.4, 0.1)), strict=True
            ):
                for seed, passed in enumerate(shares[0]):
                    cases = {str(case): bool(one) for case, one in enumerate(passed)}
                    scored = score_fields(int(passed.sum()), 40)
                    fields = {"task": task, "initializer": name, "seed": seed, "cases": cases, **scored}
                    table.append(Row(kind="arm", name=f"{name}{seed}", status="finished", **fields))
        verdicts = per_document(table)
        assert len(verdicts) == 4
        wrong += any(one.is_noise is False for one in verdicts)
        ones = per_document([row for row in table if row.seed == 0])
        assert all(one.p_value is None and one.is_noise is not False for one in ones)
        undecided += any(one.is_noise is None for one in ones)
    assert wrong <= 2 < undecided


def test_the_deviation_over_seeds_is_right_on_average():
    """Its square, that is: 8 points of the seeds and the noise of 50 answers each."""
    shares = np.random.default_rng(11)
    squares = []
    for _ in range(400):
        passed = shares.binomial(50, np.clip(0.5 + 0.08 * shares.normal(size=3), 0, 1))
        scored = [
            Row(kind="arm", name=f"s{seed}", status="finished", induction="ss", seed=seed, **score_fields(int(one), 50))
            for seed, one in enumerate(passed)
        ]
        deviation = spreads(scored)[0].deviation
        assert deviation is not None
        squares.append(deviation**2)
    truth = 0.08**2 + (0.25 - 0.08**2) / 50
    assert np.mean(squares) == pytest.approx(truth, rel=0.1)


def test_recipe_table_says_what_the_arrays_say():
    (first, second) = answers(np.random.default_rng(12), 1, [3, 2], 30, [0.8, 0.4], 0.05)
    arms = [
        arm(f"{name}-{seed}", induction=name, seed=seed, held_out=outcomes(passed))
        for name, shares in (("ss", first[0]), ("raw", second[0]))
        for seed, passed in enumerate(shares)
    ]
    recipes = [measured(first[0]), measured(second[0])]
    common = scatter(recipes)
    expected = gap(recipes[0], recipes[1], common)
    table = recipe_table(arms)
    assert (
        table.scores[1].p_value
        == pytest.approx(p_value(expected, 2))
        == table.p_value(*map(recipe_key, (arms[0], arms[3])))
    )
    assert (table.scores[0].low, table.scores[0].high) == pytest.approx(mean_interval(recipes[0], common))
    assert (table.scores[1].behind_low, table.scores[1].behind_high) == pytest.approx(gap_interval(expected, 2))


def test_more_cases_and_more_seeds_make_a_gap_surer():
    chances = []
    for seeds, num_cases in ((2, 20), (3, 40), (5, 80)):
        block = np.tile([[1.0, 1, 1, 0], [1, 1, 0, 1]], (3, num_cases // 4))[:seeds]
        recipes = [measured(block), measured(1 - block)]
        chances.append(float(p_value(gap(recipes[0], recipes[1], scatter(recipes)), 2)))
    assert all(later < earlier for earlier, later in pairwise(chances))
