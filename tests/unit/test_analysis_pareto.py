"""Dominance over score and four costs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_ray.report.ledger.row import Row
from lpc_ray.report.statistics.pareto import AXES, ParetoRow, dominates, pareto, shared_axes

SMALL = st.integers(0, 3)
MAYBE = st.one_of(SMALL, SMALL, SMALL, st.none())


def row(
    name,
    score=0.5,
    request_tokens=50,
    num_tokens=128,
    prefix_bytes=1000,
    trace_generation_seconds=1,
    training_seconds=1,
    **more,
):
    return Row(
        kind="arm",
        name=name,
        status="finished",
        score=score,
        request_tokens=request_tokens,
        num_tokens=num_tokens,
        prefix_bytes=prefix_bytes,
        trace_generation_seconds=trace_generation_seconds,
        teacher_pass_seconds=0,
        training_seconds=training_seconds,
        **more,
    )


@st.composite
def tables(draw):
    count = draw(st.integers(0, 12))
    return [row(f"row-{index}", *(draw(MAYBE) for _ in range(6))) for index in range(count)]


def axes_of(place: ParetoRow) -> tuple:
    score, *costs = (getattr(place, axis) for axis in AXES)
    return (None if score is None else -score, *costs)


@settings(deadline=None)
@given(tables())
def test_no_frontier_member_is_dominated_and_every_dominated_row_names_a_dominator_on_the_frontier(table):
    places = pareto(table)
    by_name = {place.name: place for place in places}
    comparable = [place for place in places if not place.missing]
    for place in comparable:
        is_beaten = any(dominates(axes_of(other), axes_of(place)) for other in comparable)
        assert place.is_on_frontier is not is_beaten
        assert bool(place.dominated_by) is is_beaten
        if is_beaten:
            dominator = by_name[place.dominated_by]
            assert dominator.is_on_frontier
            assert dominates(axes_of(dominator), axes_of(place))
    assert not comparable or any(place.is_on_frontier for place in comparable)


@settings(deadline=None)
@given(tables())
def test_a_row_with_a_missing_axis_is_neither_dominated_nor_dominating_nor_on_the_frontier(table):
    places = pareto(table)
    incomplete = {place.name for place in places if None in axes_of(place)}
    assert incomplete == {place.name for place in places if place.missing}
    for place in places:
        assert place.dominated_by not in incomplete
        if place.name in incomplete:
            assert not place.is_on_frontier
            assert place.dominated_by == ""


def test_each_axis_points_the_right_way():
    base = row("base")
    for better in (
        row("better", score=0.6),
        row("better", request_tokens=49),
        row("better", num_tokens=64),
        row("better", prefix_bytes=999),
        row("better", trace_generation_seconds=0),
        row("better", training_seconds=0),
    ):
        assert [place.dominated_by for place in pareto([base, better])] == ["better", ""]


def test_a_trade_off_and_equal_rows_leave_both_on_the_frontier():
    for other in (row("other", score=0.6, request_tokens=60), row("other")):
        assert [place.is_on_frontier for place in pareto([row("one"), other])] == [True, True]


def test_the_best_scoring_dominator_is_named():
    table = [row("worst", 0.1, 90), row("cheap", 0.5, 40), row("good", 0.9, 50)]
    assert [place.dominated_by for place in pareto(table)] == ["good", "", ""]


def test_a_prompt_without_a_prefix_costs_no_prefix_tokens():
    truncated, arm = pareto([row("truncated", prefix_bytes=0), row("arm")])
    assert (truncated.prefix_tokens, arm.prefix_tokens) == (0, 128)


def test_the_missing_axes_are_named():
    (place,) = pareto([row("arm", score=None, training_seconds=None)])
    assert place.missing == "score offline_seconds"
    assert place.offline_seconds is None


def test_rows_that_count_placeholders_differently_are_never_ranked():
    counted = row("counted", 0.5, 1800, placeholders_counted="yes")
    for convention in ("no", "unknown"):
        better = row("better", 0.6, 50, placeholders_counted=convention)
        assert [place.dominated_by for place in pareto([counted, better])] == ["", ""]
    assert pareto([counted, row("better", 0.6, 50, placeholders_counted="yes")])[0].dominated_by == "better"


def test_a_row_without_a_prefix_is_ranked_against_every_convention():
    none = row("none", 0.1, 2000, prefix_bytes=0, placeholders_counted="no")
    better = row("none", 0.6, 50, prefix_bytes=0, placeholders_counted="no", training_seconds=0)
    counted = row("counted", 0.5, 1800, placeholders_counted="yes")
    assert [place.dominated_by for place in pareto([none, counted, better])] == ["none", "none", ""]


def test_a_dominator_is_named_also_where_convention_keeps_it_off_the_frontier():
    prompt = row("prompt", 0.5, 50, num_tokens=0, prefix_bytes=0)
    above = row("above", 0.6, 40, num_tokens=0, prefix_bytes=0, trace_generation_seconds=0)
    below = row("below", 0.4, 60, placeholders_counted="yes")
    assert [place.dominated_by for place in pareto([below, prompt, above])] == ["above", "above", ""]


@pytest.mark.parametrize("field", ["run", "task"])
def test_rows_of_two_runs_or_two_tasks_are_never_ranked(field):
    one, other = row("one", **{field: "a"}), row("other", 0.6, **{field: "b"})
    assert [place.is_on_frontier for place in pareto([one, other])] == [True, True]


def test_a_table_with_gaps_is_ranked_by_the_axes_all_its_scored_rows_know():
    table = [row("one", prefix_bytes=None), row("other", 0.6), row("unscored", None, None)]
    assert shared_axes(table) == ("score", "request_tokens", "prefix_tokens", "offline_seconds")
    assert [place.dominated_by for place in pareto(table, shared_axes(table))] == ["other", "", ""]


def test_expected_requests_are_carried_and_not_ranked():
    often, seldom = pareto([row("often", expected_requests=1000), row("seldom", expected_requests=1)])
    assert (often.expected_requests, often.is_on_frontier, seldom.is_on_frontier) == (1000, True, True)
