"""The time left, from what has been measured."""

from lpc_ray.console import Pace, clock


def test_time_left_counts_steps_and_checkpoints_apart():
    pace = Pace(["a", "b"], [0, 1, 2, 10])
    assert pace.left("a", 0, 0.0, now=100.0) is None
    # One step of 2 s, and 3 s for its verification; then 9 steps, 6 checkpoints remain.
    assert pace.left("a", 1, 2.0, now=105.0) == (9 + 10) * 2.0 + (2 + 4) * 3.0
    assert pace.left("a", 2, 4.0, now=110.0) == (8 + 10) * 2.0 + (1 + 4) * 3.0
    pace.ended("a")
    assert pace.left("b", 0, 0.0, now=113.0) == 10 * 2.0 + 3 * 3.0


def test_checkpoints_that_a_rerun_repeats_do_not_count_as_fast_training():
    pace = Pace(["a"], [0, 4, 8])
    pace.left("a", 0, 0.0, now=0.0)
    assert pace.left("a", 4, 80.0, now=0.1) is None
    assert pace.left("a", 8, 160.0, now=100.1) == 0.0


def test_an_arm_that_ended_before_is_not_waited_for():
    pace = Pace(["open"], [0, 2])
    pace.left("ended", 0, 0.0, now=0.0)
    assert pace.left("ended", 2, 1.0, now=2.0) == 2 * 0.5 + 2 * 1.0


def test_clock_is_minutes_and_seconds():
    assert [clock(0), clock(61.4), clock(-3), clock(3600)] == ["00:00", "01:01", "00:00", "60:00"]
