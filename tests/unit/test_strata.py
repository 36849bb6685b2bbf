"""Which tasks of a suite are tried: seeded, recorded, and independent of everything but sizes, names and seed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_ray.errors import ConfigError
from lpc_ray.suite.strata import BY_SIZE, pick_strata

CANDIDATES = st.dictionaries(
    st.text("abcdef-", min_size=1, max_size=6), st.integers(0, 40_000), min_size=4, max_size=30
)


@settings(deadline=None)
@given(CANDIDATES, st.integers(0, 5))
def test_every_stratum_has_its_tasks_and_no_task_stands_twice(candidates, seed):
    per_stratum = len(candidates) // 4
    strata = pick_strata(candidates, seed, per_stratum)
    assert [pick.stratum for pick in strata.picks] == [
        name for name in (*BY_SIZE, "random") for _ in range(per_stratum)
    ]
    assert len(set(strata.tasks)) == 4 * per_stratum
    assert {pick.task: pick.skill_chars for pick in strata.picks}.items() <= candidates.items()


@settings(deadline=None)
@given(CANDIDATES, st.integers(0, 5))
def test_small_is_never_larger_than_medium_nor_medium_than_large(candidates, seed):
    strata = pick_strata(candidates, seed)
    small, medium, large = (strata.bounds[stratum] for stratum in BY_SIZE)
    assert small[0] <= small[1] <= medium[0] <= medium[1] <= large[0] <= large[1]
    for pick in strata.picks[:3]:
        low, high = strata.bounds[pick.stratum]
        assert low <= pick.skill_chars <= high


@settings(deadline=None)
@given(CANDIDATES, st.randoms())
def test_the_order_in_which_tasks_are_read_changes_nothing(candidates, random):
    shuffled = list(candidates.items())
    random.shuffle(shuffled)
    assert pick_strata(dict(shuffled), 3) == pick_strata(candidates, 3)


def test_another_seed_draws_other_tasks():
    candidates = {f"task-{number}": 100 * number for number in range(40)}
    drawn = [pick_strata(candidates, seed).tasks for seed in range(5)]
    assert len({tuple(tasks) for tasks in drawn}) == 5
    assert pick_strata(candidates, 0).tasks == drawn[0]


def test_the_four_published_skill_sizes_give_one_task_each():
    sizes = {"exceltable": 30_812, "powerlifting": 25_808, "xlsx": 7_775, "gdp": 5_260}
    strata = pick_strata(sizes)
    assert {pick.stratum: pick.task for pick in strata.picks[:2]} == {"small": "gdp", "medium": "xlsx"}
    assert {pick.task for pick in strata.picks[2:]} == {"powerlifting", "exceltable"}
    assert strata.bounds == {"small": (5_260, 5_260), "medium": (7_775, 7_775), "large": (25_808, 30_812)}


@pytest.mark.parametrize(("count", "per_stratum"), [(3, 1), (7, 2), (4, 0)])
def test_too_few_tasks_are_refused(count, per_stratum):
    with pytest.raises(ConfigError, match=f"strata: got {count} tasks, wanted at least"):
        pick_strata({f"t{number}": number for number in range(count)}, 0, per_stratum)
