"""The ledger, its statistics, and the words drawn from it."""

from dataclasses import replace
from fractions import Fraction

import pytest
from scipy.stats import binomtest, fisher_exact

from lpc_ray.artifacts.manifest import Manifest
from lpc_ray.config.shares import parse_share
from lpc_ray.errors import ConfigError, DataError
from lpc_ray.records import Outcome
from lpc_ray.report.english import counted, listed
from lpc_ray.report.ledger.ledger import ArmRecord, BaselineRecord, StepScore, best_step, rows
from lpc_ray.report.report import printed_table
from lpc_ray.report.significance import paired, passes, unpaired, wilson
from lpc_ray.report.statistics.seed_spread import spreads
from lpc_ray.report.statistics.steps_to_quality import convergence, curves, steps_to_quality
from lpc_ray.report.words.findings import findings
from lpc_ray.report.words.verdicts import only_difference, recipe_choices
from lpc_ray.run.costs import recorded_costs
from tests.tiny import IDENTITY


def outcomes(marks: str, protocol: str = "greedy") -> tuple[Outcome, ...]:
    """One outcome per letter: `+` pass, `-` fail, `!` verifier_error, `?` invalid."""
    verdicts = {"+": "pass", "-": "fail", "!": "verifier_error", "?": "invalid"}
    return tuple(
        Outcome(f"case-{index}", verdicts[mark], "", int(mark == "+"), 1, "reply", 40, 10, 0.1, protocol)
        for index, mark in enumerate(marks)
    )


def steps(*passed: int, total: int = 24) -> tuple[StepScore, ...]:
    """Scores at steps 0, 10, 20, … taking 5 seconds each."""
    return tuple(StepScore(10 * i, 2.0, count, total, 5.0 * i, f"digest-{i}") for i, count in enumerate(passed))


def own(digest: str) -> tuple[StepScore, ...]:
    return tuple(replace(step, digest=f"{digest}-{step.step}") for step in steps(0, 3, 9))


ARM = ArmRecord(
    name="arm",
    arm_id="0" * 32,
    induction="curated",
    objective="ntp",
    initializer="first_k",
    num_tokens=128,
    seed=0,
    initializer_seed=0,
    induction_seed=0,
    status="finished",
    planned_steps=60,
    steps=steps(0, 3, 9),
    held_out=outcomes("++-"),
    prefix_bytes=1000,
    trace_generation_seconds=2.0,
    teacher_tokens=0,
    trace_rows=183,
    dropped_rows={},
    target_tokens_seen=13_500,
)
NO_CONTEXT = BaselineRecord("no_context", 0, 0, outcomes("-+"), outcomes("---"))


def texts(arms, baselines=()) -> str:
    return "\n".join(finding.text for finding in findings(arms, baselines))


def test_the_wilson_interval_is_the_published_one():
    """Newcombe (1998), table I, method 3: 81 of 263 gives 0.2553 to 0.3662, and 0 of 20 gives 0 to 0.1611."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_the_row_holds_the_wilson_interval_of_its_counted_cases():
    row = rows([replace(ARM, held_out=outcomes("+" * 41 + "-" * 19))], [])[0]
    interval = binomtest(41, 60).proportion_ci(confidence_level=0.95, method="wilson")
    assert (row.score, row.score_low, row.score_high) == (41 / 60, interval.low, interval.high)


@pytest.mark.parametrize(("passed", "total"), [(1, 0), (0, 0), (-1, 3), (4, 3)])
def test_impossible_counts_have_no_interval(passed, total):
    with pytest.raises(DataError, match="wanted 0 <= passed <= total"):
        wilson(passed, total)


def pairs(first: str, second: str):
    return paired(passes(outcomes(first)), passes(outcomes(second)))


def test_mcnemar_equals_the_value_worked_out_by_hand():
    """Discordant 1 and 7: two-sided p = 2 (C(8,0) + C(8,1)) / 2^8 = 18 / 256; the concordant cases have no say."""
    test = pairs("+" + "-" * 7 + "++--", "-" + "+" * 7 + "++--")
    assert test is not None
    assert (test.cases, test.first_passed, test.second_passed) == (12, 3, 9)
    assert (test.first_only, test.second_only) == (1, 7)
    assert test.p_value == pytest.approx(18 / 256)
    assert test.is_noise


def test_six_cases_all_to_one_side_are_more_than_noise():
    test = pairs("+" * 6, "-" * 6)
    assert test is not None
    assert test.p_value == pytest.approx(2 / 64)
    assert not test.is_noise


def test_pairs_are_matched_by_case_and_only_scored_ones_count():
    test = paired(passes(outcomes("+!+-")), passes(outcomes("-+!-")[::-1]))
    assert test is not None
    assert (test.cases, test.first_only, test.second_only) == (2, 1, 0)
    assert pairs("!", "+") is None


def test_equal_answers_have_p_one():
    test = pairs("+-", "+-")
    assert test is not None
    assert test.p_value == 1.0


def test_the_best_step_is_the_earliest_of_equals():
    best = best_step(steps(0, 9, 4, 9))
    assert best is not None
    assert best.step == 10
    assert best_step(()) is None
    assert best_step(steps(0, total=0)) is None


def test_a_row_carries_the_best_steps_tune_score_and_digest_and_the_whole_training_time():
    row = rows([replace(ARM, steps=steps(0, 9, 4))], [])[0]
    assert (row.best_step, row.tune_passed, row.tune_total, row.digest) == (10, 9, 24, "digest-1")
    assert row.training_seconds == 10.0
    assert (row.prompt_tokens, row.generated_tokens, row.request_tokens) == (40, 10, 50)


def test_a_cost_is_what_was_measured_and_missing_where_nothing_was():
    timed = tuple(replace(step, teacher_pass_seconds=0.5 * step.step) for step in steps(0, 3, 9))
    timed_row, untimed_row = rows([replace(ARM, name="timed", steps=timed), ARM], [])
    assert (timed_row.teacher_pass_seconds, timed_row.offline_seconds) == (10.0, 2.0 + 10.0 + 10.0)
    assert (untimed_row.teacher_pass_seconds, untimed_row.offline_seconds) == (None, None)
    [prompt] = rows([], [NO_CONTEXT])
    assert (prompt.trace_generation_seconds, prompt.training_seconds, prompt.offline_seconds) == (0, 0, 0)
    [library] = rows([], [replace(NO_CONTEXT, name="theirs", costs={"training_seconds": 7.0})])
    assert (library.training_seconds, library.teacher_pass_seconds, library.offline_seconds) == (7.0, None, None)


def test_an_arm_whose_training_failed_says_so_on_its_row_and_in_the_findings():
    failed = replace(ARM, status="diverged", diagnosis=(21, "got loss nan"))
    [row] = rows([failed], [])
    assert row.status == "diverged at step 21: got loss nan"
    assert (row.best_step, row.tune_passed) == (20, 9), "its verified steps count"
    assert "arm: diverged at step 21 (got loss nan); trained for less, it is compared with no other arm." in texts(
        [failed]
    )
    unverified = replace(failed, status="out of memory", steps=(), held_out=(), diagnosis=(0, "too much"))
    assert rows([unverified], [])[0].status == "out of memory at step 0: too much"
    table = printed_table([row])
    assert "diverged at step 21" in table and table.endswith("arm: diverged at step 21: got loss nan")


def test_verdicts_that_are_no_pass_or_fail_are_shown_and_not_aggregated():
    row = rows([replace(ARM, held_out=outcomes("+-!!?"))], [])[0]
    assert (row.passed, row.total, row.score) == (1, 2, 0.5)
    assert row.uncounted_verdicts == {"verifier_error": 2, "invalid": 1}
    assert "arm: 3 held-out cases are not in its score (2 verifier_error and 1 invalid)." in texts(
        [replace(ARM, held_out=outcomes("+-!!?"))]
    )


def test_checks_inside_a_case_add_up_to_the_tasks_denominator():
    many = replace(outcomes("-")[0], passed=11, total=19)
    row = rows([replace(ARM, held_out=(many,))], [])[0]
    assert (row.passed, row.total) == (11, 19)


@pytest.mark.parametrize("held_out", ["", "!!"])
def test_without_a_scored_held_out_case_numbers_are_missing_and_not_zero(held_out):
    row = rows([replace(ARM, held_out=outcomes(held_out))], [])[0]
    assert (row.passed, row.total, row.score, row.score_low, row.request_tokens) == (None,) * 5
    assert "arm has no scored held-out case." in texts([replace(ARM, held_out=outcomes(held_out))], [NO_CONTEXT])


def test_an_arm_that_never_reached_a_verification_has_no_training_numbers():
    row = rows([replace(ARM, status="unfinished", steps=(), held_out=(), prefix_bytes=0)], [])[0]
    assert row.status == "unfinished before the first verification"
    assert (row.best_step, row.tune_passed, row.training_seconds, row.digest, row.prefix_bytes) == (None,) * 5
    assert row.target_tokens_seen is None


def test_a_stopped_arm_says_at_which_step_and_score():
    stopped = replace(ARM, status="stopped", steps=steps(0, 4, 3))
    assert rows([stopped], [])[0].status == "stopped at step 20 (verified 3/24)"
    assert "arm was stopped at step 20 of 60 with 3 of 24 tune cases right" in texts([stopped])
    assert rows([replace(stopped, status="unfinished")], [])[0].status == "unfinished at step 20"


def test_baselines_come_first_and_carry_no_offline_cost():
    baseline, arm = rows([ARM], [NO_CONTEXT])
    assert (baseline.kind, baseline.name, arm.kind) == ("baseline", "no_context", "arm")
    assert (baseline.passed, baseline.total, baseline.tune_passed, baseline.tune_total) == (0, 3, 1, 2)
    assert (baseline.trace_generation_seconds, baseline.training_seconds, baseline.teacher_tokens) == (0, 0, 0)
    assert (baseline.induction, baseline.seed, baseline.best_step, baseline.digest) == (None,) * 4


def test_baselines_of_two_sizes_get_two_names_and_equal_names_are_refused():
    cut = BaselineRecord("truncated", 64, 0, (), outcomes("-"))
    assert [row.name for row in rows([], [cut, replace(cut, num_tokens=128)])] == ["truncated-p64", "truncated-p128"]
    with pytest.raises(DataError, match="more than one row named arm"):
        rows([ARM, ARM], [])


def test_steps_out_of_order_are_refused():
    with pytest.raises(DataError, match=r"arm arm: got the verified steps \[10, 0\]"):
        replace(ARM, steps=tuple(reversed(steps(1, 2))))


def test_convergence_has_a_row_per_checkpoint_and_no_number_for_a_diverged_loss():
    diverged = replace(steps(6)[0], step=30, loss=float("nan"))
    points = convergence([replace(ARM, steps=(*steps(0, 12), diverged))])
    assert [(point.step, point.score, point.loss) for point in points] == [
        (0, 0.0, 2.0),
        (10, 0.5, 2.0),
        (30, 0.25, None),
    ]


def test_a_threshold_is_met_by_the_first_step_that_reaches_it_exactly():
    line = steps_to_quality(curves([replace(ARM, steps=steps(0, 5, 15, 3, total=25))]), (0.2, 0.6, 0.61))[0]
    assert line.steps == (10, 20, None)


def test_every_count_meets_the_threshold_that_is_written_as_it():
    for total in (7, 19, 24, 66):
        for passed in range(1, total + 1):
            (line,) = steps_to_quality(
                curves([replace(ARM, steps=steps(passed - 1, passed, total=total))]), (f"{passed}/{total}",)
            )
            assert line.steps == (10,)


def test_a_stopped_arm_meets_no_threshold_it_did_not_reach():
    line = steps_to_quality(curves([replace(ARM, status="stopped", steps=steps(0, 6))]), (0.25, 0.5))[0]
    assert (line.steps, line.ended, line.best) == ((10, None), "stopped at step 10", Fraction(1, 4))


ROPE = replace(ARM, name="rope", initializer="strided_rope", held_out=outcomes("+++"))


@pytest.mark.parametrize(
    "change",
    [
        {"objective": "kl"},
        {"seed": 1},
        {"initializer_seed": 1},
        {"induction_seed": 1},
        {"num_tokens": 64},
        {"status": "stopped"},
        {"planned_steps": 48},
        {"held_out": outcomes("++")},
        {"held_out": outcomes("++!")},
        {"held_out": outcomes("+++", protocol="sampled")},
    ],
)
def test_no_verdict_where_more_than_one_named_field_differs(change):
    assert only_difference(ARM, ROPE) == "initializer"
    other = replace(ROPE, **change)
    assert only_difference(ARM, other) is None
    assert recipe_choices([ARM, other]) == [
        "No two finished arms differ in exactly one recipe field on equal seeds, so no choice is judged."
    ]


def test_arms_that_differ_in_nothing_are_not_compared():
    assert only_difference(ARM, replace(ARM, name="again")) is None


def test_a_recipe_choice_is_told_seed_by_seed_and_judged_over_all_of_them():
    def one(initializer, seed, marks):
        return replace(
            ARM,
            name=f"{initializer}{seed}",
            steps=own(f"{initializer}{seed}"),
            initializer=initializer,
            seed=seed,
            held_out=outcomes(marks),
        )

    pairs = [
        one("sci", 0, "+" * 9),
        one("sci", 1, "+" * 9),
        one("first_k", 0, "-" * 8 + "+"),
        one("first_k", 1, "+" * 8 + "-"),
    ]
    assert recipe_choices(pairs) == [
        (
            "initializer sci against first_k, with induction curated, objective ntp, 128 prefix tokens: "
            "seed 0: 9 against 1 of 9 cases (8 to 0); seed 1: 9 against 8 of 9 cases (1 to 0). "
            "Inside the noise over seeds and cases (p = 0.43)."
        )
    ]
    (alone,) = recipe_choices([pairs[0], pairs[2]])
    assert alone.endswith("9 against 1 of 9 cases (8 to 0). One seed of a side cannot tell the choice from the seed.")


def test_an_arm_is_set_against_every_baseline_on_the_cases_both_answered():
    arm = replace(ARM, held_out=outcomes("+" * 8))
    full = BaselineRecord("full_document", 0, 0, (), outcomes("+" * 7 + "!"))
    none = BaselineRecord("no_context", 0, 0, (), outcomes("-" * 8))
    assert (
        "arm answers 8 of 8 held-out cases (100.0 %, 95 % interval 67.6 to 100.0 %): better than no context (8 to 0, "
        "p = 0.016); not distinguished from the whole document in the prompt (0 to 0, p = 1.00, on the 7 cases both "
        "answered)."
    ) in texts([arm], [full, none])
    assert "worse than the whole document in the prompt (0 to 7, p = 0.016" in texts(
        [replace(arm, held_out=outcomes("-" * 8))], [full]
    )


def test_an_arm_that_learned_nothing_is_told():
    assert "No arm passed any tune case at any step: nothing was learned that the cases show." in texts(
        [replace(ARM, steps=steps(0, 0))]
    )
    worse = replace(ROPE, steps=steps(8, 3))
    assert f"Training made no better than the untrained start of {ROPE.name} (step 0)." in texts([ARM, worse])
    assert "no better than the untrained start" not in texts([ARM])


def test_leaders_are_named_with_their_steps():
    assert "The best score on the tune cases, 9 of 24, is that of arm (step 20)." in texts([ARM])
    behind = replace(ROPE, steps=steps(0, 8))
    assert "The best score on the tune cases, 9 of 24, is that of arm (step 20)." in texts([behind, ARM])
    assert "is shared by arm (step 20) and rope (step 20)." in texts([ARM, ROPE])
    assert "No arm has been verified yet." in texts([replace(ARM, steps=())])


def test_seed_spread_counts_finished_seeds_and_names_those_that_ended_early():
    other = replace(ARM, name="s1", seed=1, steps=own("s1"), held_out=outcomes("+--"))
    stopped = replace(ARM, name="s2", seed=2, status="stopped", held_out=outcomes("---"))
    (spread,) = spreads(rows([ARM, other, stopped], [NO_CONTEXT]))
    assert spread.words() == (
        "curated, ntp, first_k, 128 prefix tokens: 33.3 to 66.7 % over 2 seeds (1 more seed ended early), "
        "mean 50.0 %; fewer than the 3 seeds a claim needs."
    )
    assert spreads(rows([ARM], []))[0].words().endswith("66.7 % on one seed; the spread is unknown.")
    assert (
        spreads(rows([stopped], []))[0]
        .words()
        .endswith("no seed that was trained to the end has a held-out score (1 seed ended early).")
    )
    third = replace(stopped, steps=own("s2"), status="finished")
    assert spreads(rows([ARM, other, third], []))[0].words().endswith("0.0 to 66.7 % over 3 seeds, mean 33.3 %.")


def test_counts_and_lists_read_as_english():
    assert (counted(1, "case"), counted(0, "case"), counted(1200, "case")) == ("1 case", "0 cases", "1,200 cases")
    assert [listed(list(words)) for words in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
    one = replace(NO_CONTEXT, held_out=outcomes("+!"))
    assert "With no context, the model answers 1 of 1 held-out case (" in texts([], [one])
    assert "no_context: 1 held-out case is not in its score (1 verifier_error)." in texts([], [one])


@pytest.mark.parametrize(
    ("given", "exact"),
    [
        (0.1, Fraction(1, 10)),
        ("12/19", Fraction(12, 19)),
        (1, Fraction(1)),
        ("50%", Fraction(1, 2)),
        ("0.5", Fraction(1, 2)),
        (5 / 7, Fraction(5, 7)),
        ("0.7142857142857143", Fraction(5, 7)),
        (12 / 19, Fraction(12, 19)),
        (1e-9, Fraction(1, 10**9)),
        ("62.5 %", Fraction(5, 8)),
        ("100%", Fraction(1)),
    ],
)
def test_a_threshold_is_exactly_what_is_written(given, exact):
    assert parse_share(given) == exact


@pytest.mark.parametrize("given", ["half", "1/0", 0, 1.5, "-1/2", "50", "101%", "0%", "%", "50%%", "-5%"])
def test_a_threshold_that_is_no_share_is_refused(given):
    with pytest.raises(ConfigError, match="threshold: got"):
        parse_share(given)


def test_fishers_test_is_scipys():
    assert unpaired((17, 20), (13, 20)) == fisher_exact([[17, 3], [13, 7]]).pvalue


def test_only_numbers_count_among_the_costs_that_a_foreign_manifest_states():
    stated = {
        "training_seconds": 3.0,
        "teacher_tokens": 5,
        "who": "us",
        "trace_rows": True,
        "teacher_pass_seconds": -1.0,
    }
    manifest = Manifest("0" * 32, IDENTITY, 4, 1, "float32", costs=stated)
    assert recorded_costs(manifest) == {"training_seconds": 3.0, "teacher_tokens": 5}
