"""Dominance over score and four costs."""

from hypothesis import given
from hypothesis import strategies as st

from lpc_ray.analysis.pareto import AXES, ParetoRow, dominates, pareto
from lpc_ray.analysis.row import Row

SMALL = st.integers(0, 3)
MAYBE = st.one_of(SMALL, SMALL, SMALL, st.none())


def row(name, score=0.5, request_tokens=50, num_tokens=128, prefix_bytes=1000, induction_seconds=1, training_seconds=1):
    return Row(
        kind="arm",
        name=name,
        status="finished",
        score=score,
        request_tokens=request_tokens,
        num_tokens=num_tokens,
        prefix_bytes=prefix_bytes,
        induction_seconds=induction_seconds,
        training_seconds=training_seconds,
    )


@st.composite
def tables(draw):
    count = draw(st.integers(0, 12))
    return [row(f"row-{index}", *(draw(MAYBE) for _ in range(6))) for index in range(count)]


def axes_of(place: ParetoRow) -> tuple:
    return tuple(getattr(place, axis) for axis in AXES)


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
        row("better", induction_seconds=0),
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
