"""ASHA on the verified score: a falling loss does not save an arm whose score stays flat, nor does noise kill a good one."""

import math
from typing import Any, cast

import pytest
import ray
import torch
from ray import tune
from ray.tune import Callback, RunConfig, TuneConfig

from lpc_ray.adapters.ray.sweep import SweepWatcher, TolerantASHA, TrialSetup, score_of, sweep
from lpc_ray.artifacts.store import publish
from lpc_ray.config.recipe import StoppingRecipe
from lpc_ray.errors import StorageError
from lpc_ray.records import Ask, Case
from lpc_ray.run.arms import Arm
from lpc_ray.run.checkpoints import ArmStore, Checkpoint
from lpc_ray.run.folder import RunFolder
from lpc_ray.storage import Store
from lpc_ray.verification.base import Benchmark, judged
from lpc_ray.verification.outcomes import OutcomeStore, Verifier
from tests.scripted import reply
from tests.tiny import IDENTITY

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


def scripted_sweep():
    """(benchmark, pool, desk), of classes that other processes get by value."""

    class Exact(Benchmark):
        """24 tune cases; the reply says how many of them are right."""

        cases = tuple(Case(str(number), f"{number}", ("yes",), "tune") for number in range(24))

        def identity(self):
            return ["exact"]

        def examine(self, case: Case, ask: Ask):
            [answer] = yield [ask]
            return judged(int(case.id) < int(answer.text))

    class Pool:
        """Answers by the prefix that is asked: its number of right cases."""

        def __init__(self, right: dict[str, int]):
            self.right = right

        def generate(self, asks):
            return [reply(str(self.right[ask.prefix.digest])) for ask in asks]

    @ray.remote(num_cpus=0)
    class Desk:
        async def stop(self, arm_id):
            pass

    return Exact(), Pool, Desk


def replayed(tmp_path) -> TrialSetup:
    """Two arms with checkpoints up to the last step; the second falls far behind at step 16."""
    run, right, arms = RunFolder(Store(str(tmp_path / "run"))), {}, []
    for name, scores in (("good", (0, 20, 20)), ("bad", (0, 2, 20))):
        axes = {"num_tokens": 3, "seed": 0, "initializer_seed": 0, "induction_seed": 0}
        arms.append(Arm(name, "ntp", "first_k", **axes, traces="t", general_traces=None, id=name))
        for step, score in zip((0, 16, 48), scores, strict=True):
            tensors = torch.full((3, 3, 2, 8), len(right) + 1.0)
            digest = publish(run.artifacts, tensors, tensors.clone(), IDENTITY, 1).digest
            ArmStore(run.arm(name)).add_checkpoint(Checkpoint(step, digest, 1.0, 1.0, 0, 0, 1.0))
            right[digest] = score
        ArmStore(run.arm(name)).set_end("old", "finished", 48)
    benchmark, pool, desk = scripted_sweep()
    verifier = Verifier(benchmark, OutcomeStore(run.outcomes("new"), "new"), None, 8)
    return TrialSetup(
        arms={arm.name: arm for arm in arms},
        run=run,
        verifier=verifier,
        pool=cast(Any, pool(right)),
        desk=desk.remote(),
        first_decision=16,
        last_step=48,
        cache=tmp_path / "cache",
    )


def test_arms_replayed_under_another_protocol_end_where_that_protocol_stops_them(local_ray, tmp_path):
    """The second arm is stopped at step 16, and again in a later rerun."""
    setup = replayed(tmp_path)
    run, (good, bad) = setup.run, setup.arms
    for time in ("first", "again"):
        seen: dict[str, list[int]] = {good: [], bad: []}
        ends: dict[str, dict] = {}
        watcher = SweepWatcher(
            setup,
            lambda arm, result, seen=seen: seen[arm.name].append(result["step"]),
            lambda arm, end, ends=ends: ends.update({arm.name: end}),
        )
        assert sweep(list(setup.arms.values()), setup, StoppingRecipe(grace_steps=16), 24, watcher, time) == []
        assert seen == {good: [0, 16, 48], bad: [0, 16]}
        assert ends == {good: {"status": "finished", "step": 48}, bad: {"status": "stopped", "step": 16}}
        assert ArmStore(run.arm("bad")).end("new") == {"status": "stopped", "step": 16}
    assert ArmStore(run.arm("bad")).end("old") == {"status": "finished", "step": 48}


def test_what_a_watcher_meets_ends_the_sweep_in_its_own_words(local_ray, tmp_path, capfd):
    """A store that fills while a result is logged: no trial begins after it, and no traceback is printed."""
    setup = replayed(tmp_path)
    begun: list[tuple[str, int]] = []

    def log(arm, result):
        begun.append((arm.name, result["step"]))
        if result["step"] == 16:
            raise StorageError("tracking: disk is full")

    watcher = SweepWatcher(setup, log, lambda arm, end: begun.append((arm.name, -1)))
    with pytest.raises(StorageError, match=r"^tracking: disk is full$"):
        sweep(list(setup.arms.values()), setup, StoppingRecipe(grace_steps=16), 24, watcher, "full")
    good, _ = setup.arms
    assert begun == [(good, 0), (good, 16)]
    assert "Traceback" not in "".join(capfd.readouterr())
