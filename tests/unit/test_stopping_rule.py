"""How far below the cutoff an arm may be."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import binom

from lpc_ray.config.recipe import StoppingRecipe
from lpc_ray.run.stopping import ended, tolerated


def least_kept(passed: int, total: int, errors: float) -> int:
    """The fewest cases right with which an arm goes on beside one that has `passed`."""
    cutoff = tolerated(passed / total, total, errors)
    return next(right for right in range(total + 1) if not right / total < cutoff)


@pytest.mark.parametrize(
    ("passed", "total", "kept"),
    [(24, 24, 23), (23, 24, 22), (12, 24, 9), (1, 24, 0), (0, 24, 0), (66, 66, 65), (33, 66, 28)],
)
def test_a_case_less_is_no_reason_to_stop_at_either_end(passed, total, kept):
    assert least_kept(passed, total, 1.0) == kept


def test_the_margin_is_newcombes():
    """Newcombe (1998), table II, method 10: the interval of 9/10 - 3/10 is 0.1705 to 0.8090."""
    z = 1.959964
    assert tolerated(0.9, 10, z) > 0.3 and tolerated(1.0, 10, z) > 0
    # The greatest score that is stopped differs from the cutoff by the square root of both margins' squares.
    cutoff = tolerated(1.0, 24, 1.0)
    below = 1 - 24 / 25
    square = 1 / 24
    upper = (cutoff + square / 2 + math.sqrt(square * cutoff * (1 - cutoff) + square**2 / 4)) / (1 + square)
    assert 1 - cutoff == pytest.approx(math.hypot(below, upper - cutoff), abs=1e-6)


def test_no_tolerance_is_plain_asha_and_no_score_stops_nothing():
    assert tolerated(0.7, 24, 0.0) == 0.7
    assert math.isnan(tolerated(math.nan, 24, 1.0))


@given(st.integers(1, 200), st.data(), st.floats(0.1, 4))
def test_the_margin_is_never_empty_and_grows_with_the_errors(total, data, errors):
    passed = data.draw(st.integers(1, total))
    cutoff = tolerated(passed / total, total, errors)
    assert 0 <= cutoff < passed / total
    assert tolerated(passed / total, total, errors + 0.5) <= cutoff


@pytest.mark.parametrize("truth", [0.1, 0.5, 0.9, 0.97])
def test_an_arm_as_good_as_another_is_stopped_in_one_of_five_or_fewer(truth):
    """Exactly, by the binomial law, at one standard error: 16 % is the normal law's."""
    for total in (12, 24, 66):
        chance = binom.pmf(np.arange(total + 1), total, truth)
        wrong = sum(chance[best] * chance[: least_kept(best, total, 1.0)].sum() for best in range(total + 1))
        assert wrong <= 0.18


@pytest.mark.parametrize("errors", [1e200, 101, math.inf, math.nan, -1])
def test_a_tolerance_that_no_margin_could_have_is_refused(errors):
    with pytest.raises(ValidationError, match="tolerance_errors"):
        StoppingRecipe(tolerance_errors=errors)
    assert tolerated(1.0, 1, 100) == 0.0


def test_an_arm_is_finished_only_where_its_last_step_was_reported():
    assert [ended(step, 48) for step in (0, 16, 48)] == ["stopped", "stopped", "finished"]
