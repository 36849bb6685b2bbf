"""ASHA on the verified score: a falling loss does not save an arm whose score stays flat, nor does noise kill a good one."""

import math

import pytest
import ray
from ray import tune
from ray.tune import Callback, RunConfig, TuneConfig

from lpc_ray.adapters.ray.sweep import TolerantASHA, score_of

STEPS = (0, 1, 2, 4, 8, 16, 24, 48)


@pytest.fixture(scope="module")
def local_ray():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


class LastResults(Callback):
    """Score given → the last result reported."""

    def __init__(self):
        self.seen = {}

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.seen[round(trial.config["score"] * 24)] = result


def test_a_flat_score_is_stopped_while_a_score_within_one_standard_error_goes_on(local_ray, tmp_path):
    scheduler = TolerantASHA(
        num_cases=24,
        errors=1.0,
        time_attr="step",
        metric="score",
        mode="max",
        grace_period=24,
        reduction_factor=2,
        max_t=49,
    )

    def arm(config):
        for step in STEPS:
            score = config["score"] if step >= 16 else 0.0
            tune.report({"step": step, "score": score, "loss": 5.0 / (step + 1)})

    last = LastResults()
    tune.Tuner(
        tune.with_resources(arm, {"cpu": 0.5}),
        param_space={"score": tune.grid_search([15 / 24, 13 / 24, 1 / 24])},
        tune_config=TuneConfig(scheduler=scheduler, max_concurrent_trials=1),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0, callbacks=[last]),
    ).fit()
    assert last.seen[15]["step"] == 48 and last.seen[13]["step"] == 48
    assert last.seen[1]["step"] == 24 and last.seen[1]["loss"] < 1


def test_the_score_of_no_counted_case_is_no_number():
    assert math.isnan(score_of(())["score"])
