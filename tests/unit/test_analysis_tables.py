"""Sums over tasks, verdicts per document, break-even and what is inside the noise."""

from dataclasses import replace

import pytest
from scipy.stats import binomtest, fisher_exact

from lpc_ray.report.ledger.row import Row, score_fields
from lpc_ray.report.statistics.break_even import break_even
from lpc_ray.report.statistics.difference import contrasts
from lpc_ray.report.statistics.initializer_duels import per_document
from lpc_ray.report.statistics.over_tasks import by_arm
from lpc_ray.report.statistics.seed_spread import spreads


def row(name="arm", passed=None, total=None, **fields) -> Row:
    scored = score_fields(passed, total) if passed is not None else {}
    return Row(**{"kind": "arm", "name": name, "status": "finished", **scored, **fields})


def test_a_sum_over_tasks_adds_checks_and_seconds_and_averages_tokens():
    one = row("a", 1, 4, task="t", request_tokens=10, num_tokens=100, prefix_bytes=5, training_seconds=1, kl_drift=0.5)
    two = row("a", 6, 6, task="u", request_tokens=30, num_tokens=200, prefix_bytes=7, training_seconds=2)
    (found,) = by_arm([one, two])
    assert (found.row.passed, found.row.total, found.row.score) == (7, 10, 0.7)
    assert found.mean_task_score == pytest.approx((0.25 + 1) / 2)
    assert (found.row.request_tokens, found.row.num_tokens, found.row.prefix_bytes) == (20, 150, 12)
    assert (found.row.training_seconds, found.row.trace_generation_seconds, found.row.kl_drift) == (3, None, None)


def test_a_prefix_that_is_a_part_of_every_source_is_named_without_a_size():
    rows = [row(f"a-p{size}-s0", 1, 4, task=f"t{size}", induction="ss", seed=0, num_tokens=size) for size in (64, 80)]
    assert [found.row.name for found in by_arm(rows)] == ["a-s0"]
    assert [found.row.name for found in by_arm([replace(one, num_tokens=64) for one in rows])] == ["a-p64-s0"]


def test_an_arm_that_lacks_a_task_has_a_count_and_no_score():
    rows = [
        row("a", 1, 4, task="t"),
        row("a", task="u", status="invalid"),
        row("b", 1, 4, task="t"),
        row("b", 2, 4, task="u"),
    ]
    first, second = by_arm(rows)
    assert (first.row.passed, first.row.score, first.mean_task_score, first.uncounted_tasks) == (1, None, None, ("u",))
    assert (second.row.passed, second.row.score) == (3, 3 / 8)


def test_a_task_that_nothing_could_score_counts_for_no_arm():
    confounded = [row(name, task="u", status="harness_confounded") for name in "ab"]
    rows = [row("a", 1, 4, task="t"), row("b", 2, 4, task="t"), *confounded]
    assert [(found.row.score, found.row.status) for found in by_arm(rows)] == [
        (0.25, "1 of 1 tasks"),
        (0.5, "1 of 1 tasks"),
    ]
    assert [found.row.score for found in by_arm(confounded)] == [None, None]


def test_sums_never_cross_runs():
    rows = [row("a", passed, 4, task="t", run=run) for run, passed in (("r", 1), ("s", 4))]
    assert [(found.row.run, found.row.passed) for found in by_arm(rows)] == [("r", 1), ("s", 4)]


def test_two_prefix_sizes_on_one_task_are_two_arms():
    rows = [row(f"a-p{size}", 1, 4, task="t", induction="ss", num_tokens=size) for size in (64, 128)]
    assert [found.row.num_tokens for found in by_arm(rows)] == [64, 128]


def initialized(initializer, passed, **fields) -> Row:
    return row(f"{initializer}{fields}", passed, 20, task="doc", initializer=initializer, **fields)


def test_a_document_goes_to_the_best_seed_and_to_the_better_mean_each():
    rows = [initialized("first_k", 10), *(initialized("sci", passed, initializer_seed=passed) for passed in (12, 6, 6))]
    (verdict,) = per_document(rows)
    assert (verdict.first_best, verdict.second_best, verdict.delta, verdict.by_best) == (10, 12, 2, "second")
    assert (verdict.first_mean, verdict.second_mean, verdict.mean_delta, verdict.by_mean) == (10, 8, -2, "first")
    assert (verdict.first_seeds, verdict.second_seeds) == (1, 3)
    assert verdict.bests is not None
    assert verdict.bests.p_value == fisher_exact([[10, 10], [12, 8]]).pvalue
    assert verdict.bests.is_noise


def test_a_mean_is_unknown_where_only_the_best_seed_was_told():
    (verdict,) = per_document([initialized("first_k", 10), initialized("sci", 12, is_best_of_several=True)])
    assert (verdict.by_best, verdict.by_mean, verdict.second_mean, verdict.second_seeds) == ("second", None, None, None)


def test_documents_and_recipes_are_compared_only_with_their_own():
    rows = [
        initialized("first_k", 10),
        initialized("sci", 12, objective="kl"),
        row("s", 12, 19, task="doc", initializer="sci"),
    ]
    assert per_document(rows) == []
    stopped = row("s", 12, 20, task="doc", initializer="sci", status="stopped at step 8 (verified 3/24)")
    assert per_document([initialized("first_k", 10), stopped]) == []


SPENT = {"trace_generation_seconds": 60.0, "teacher_pass_seconds": 0.0, "training_seconds": 40.0}
PROMPT = row("full_document", 5, 10, kind="baseline", request_seconds=0.5)


@pytest.mark.parametrize(
    ("expected", "observed", "repaid"),
    [(None, None, None), (250, None, True), (249, 1000, False), (None, 250, True), (None, 3, False)],
)
def test_offline_seconds_are_repaid_after_the_request_that_covers_them(expected, observed, repaid):
    """100 s spent, 0.4 s saved each: 250 requests, the last of which pays exactly."""
    arm = row("a", 6, 10, request_seconds=0.1, expected_requests=expected, observed_requests=observed, **SPENT)
    (line,) = break_even([PROMPT, arm])
    assert (line.arm, line.reference, line.requests, line.is_repaid) == ("a", "full_document", 250, repaid)


def test_a_break_even_at_a_whole_number_of_requests_is_that_number():
    """60 s at 0.6 s saved are 100 requests; as floats 0.7 - 0.1 is less than 0.6, and the 101st would pay."""
    spent = {**SPENT, "training_seconds": 0.0}
    document = replace(PROMPT, request_seconds=0.7)
    (line,) = break_even([document, row("a", 6, 10, request_seconds=0.1, expected_requests=100, **spent)])
    assert (line.requests, line.is_repaid, line.saved_seconds) == (100, True, 0.6)


def test_a_request_that_is_not_cheaper_never_repays():
    (line,) = break_even([PROMPT, row("a", 6, 10, request_seconds=0.5, expected_requests=10**9, **SPENT)])
    assert (line.requests, line.is_repaid, line.reason) == (None, False, "never: a request is not cheaper")


def test_an_arm_that_scores_less_beyond_noise_repays_nothing():
    document = row("full_document", 45, 66, kind="baseline", request_seconds=0.5)
    (line,) = break_even([document, row("a", 5, 66, request_seconds=0.1, expected_requests=10**9, **SPENT)])
    assert (line.requests, line.is_repaid, line.reason) == (None, False, "never: it passed 5/66, full_document 45/66")
    (line,) = break_even([document, row("a", 44, 66, request_seconds=0.1, expected_requests=10**9, **SPENT)])
    assert (line.requests, line.is_repaid) == (250, True)


def test_the_same_cases_are_compared_pair_by_pair():
    """0 to 6 on the same cases is more than noise (2 / 64), which 54 against 60 of 66 by counts alone is not."""

    def first_right(passed):
        return {str(case): case < passed for case in range(66)}

    document = row("full_document", 60, 66, kind="baseline", request_seconds=0.5, cases=first_right(60))
    arm = row("a", 54, 66, request_seconds=0.1, cases=first_right(54), **SPENT)
    (line,) = break_even([document, arm])
    assert (line.requests, line.p_value, line.test) == (None, pytest.approx(2 / 64), "McNemar")
    (found,) = contrasts([document, arm])
    assert set(found.above) == {"a"} and found.tests == ["McNemar"]
    (line,) = break_even([replace(document, cases=None), arm])
    assert (line.requests, line.test) == (250, "Fisher")
    (found,) = contrasts([replace(document, cases=None), arm])
    assert set(found.noise) == {"a"} and found.tests == ["Fisher"]


def test_the_best_arms_of_two_initializers_are_compared_case_by_case():
    """6 and 12 of 20 on no case in common: McNemar's odds are 6 to 12."""
    first = initialized("first_k", 6, cases={str(case): case < 6 for case in range(20)})
    second = initialized("sci", 12, cases={str(case): case >= 6 and case < 18 for case in range(20)})
    (verdict,) = per_document([first, second])
    assert verdict.bests is not None
    assert (verdict.bests.test, verdict.bests.p_value) == ("McNemar", binomtest(6, 18, 0.5).pvalue)


def test_a_break_even_with_an_unknown_cost_is_unknown():
    (line,) = break_even([PROMPT, row("a", 6, 10, expected_requests=10, trace_generation_seconds=1.0)])
    assert (line.requests, line.is_repaid, line.reason) == (None, None, "unknown: offline seconds, seconds per request")


def test_the_leader_of_each_task_is_set_against_every_other_row():
    rows = [
        row("a", 20, 24, task="t"),
        row("b", 17, 24, task="t"),
        row("c", 2, 24, task="t"),
        row("d", task="t"),
        row("e", 1, 1),
    ]
    (found,) = contrasts(rows)
    assert found.leader.name == "a"
    assert set(found.noise) == {"b"} and set(found.above) == {"c"}
    assert found.others["b"].p_value == fisher_exact([[20, 4], [17, 7]]).pvalue


def test_rows_that_share_no_case_are_compared_by_their_counts_and_one_of_many_by_all_pairs():
    one = row("a", 5, 7, cases={str(case): case < 5 for case in range(7)})
    other = row("b", 4, 7, cases={str(case + 10): case < 4 for case in range(7)})
    (found,) = contrasts([one, other])
    assert found.tests == ["Fisher"] and set(found.noise) == {"b"}
    # 17 against 8 of 19 is p = 0.005 for a pair; with four rows it is the least of six.
    four = [row(name, passed, 19) for name, passed in (("a", 17), ("b", 14), ("c", 12), ("d", 8))]
    (found,) = contrasts(four)
    assert found.others["d"].p_value == pytest.approx(6 * fisher_exact([[17, 2], [8, 11]]).pvalue)
    assert set(found.above) == {"d"}


def test_the_spread_over_seeds_is_the_sample_standard_deviation():
    rows = [row(f"s{seed}", passed, 10, induction="ss", seed=seed) for seed, passed in enumerate((2, 4, 9))]
    (spread,) = spreads([*rows, row("bad", induction="ss", seed=3, status="invalid")])
    assert (spread.mean, spread.unscored, len(spread.rows)) == (pytest.approx(0.5), 1, 4)
    assert spread.deviation == pytest.approx(((0.3**2 + 0.1**2 + 0.4**2) / 2) ** 0.5)
