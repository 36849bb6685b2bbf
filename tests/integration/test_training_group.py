"""A real group of two workers with DeepSpeed: waits longer than its time-out, arms that fail, and the arms after them."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import ray
import torch

from lpc_ray.adapters.ray.group import GroupSetup, TrainingGroup, start_training_group
from lpc_ray.artifacts.store import stored_manifest
from lpc_ray.config.job import TrainingResources
from lpc_ray.config.recipe import Recipe
from lpc_ray.errors import ClusterError
from lpc_ray.prefix.starts import Starts
from lpc_ray.records import TraceRow
from lpc_ray.run.arms import Arm
from lpc_ray.run.checkpoints import ArmStore
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.origin import Origin
from lpc_ray.storage import Store
from lpc_ray.traces.store import TraceStore
from lpc_ray.training.packing import batches
from tests.tiny import save_tiny, taught_rows, tiny_model

TIMEOUT, LONGER = 10, 14  # seconds
GIANT = 1_000_000  # tokens of a prompt whose attention needs a terabyte
CHECKPOINTS = [0, 2, 4]
GOOD = Arm("ss", "kl", "random_vectors", 6, 0, 0, 0, traces="good", general_traces=None, id="before")
PATIENCE = 240


@pytest.fixture(scope="module")
def local_ray():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def _recipe(model: str) -> Recipe:
    training = {
        "steps": CHECKPOINTS[-1],
        "checkpoint_steps": CHECKPOINTS,
        "batch_tokens": 60,
        "window_tokens": 32,
        "teacher_targets": "recomputed",
    }
    return Recipe.model_validate(
        {
            "model": {"id": model},
            "source": {"paths": ["none"]},
            "verification": {"cases": "none"},
            "training": training,
            "sweep": [{"induction": "ss", "objective": "kl", "initializer": "random_vectors"}],
        }
    )


def _setup(folder: Path, model: str, workers: int = 2, zero_stage: Literal[1, 3] = 1) -> GroupSetup:
    resources = TrainingResources(
        workers=workers,
        cpus=0.5,
        threads=1,
        zero_stage=zero_stage,
        max_failures=0,
        collective_timeout_seconds=TIMEOUT,
    )
    run, starts = RunFolder(Store(str(folder))), Starts(list(range(5, 60)))
    origin = Origin("recipe", "source", {"ss": "cartridge"}, {"system": ""})
    return GroupSetup(_recipe(model), run, starts, resources, model, origin)


@dataclass
class Trial:
    """What a trial does for its arm, but slower where told so; `ended` is the last event."""

    group: TrainingGroup
    arm: Arm
    slow_at: int | None = None

    def run(self) -> dict[str, Any]:
        ray.get(self.group.desk.enrol.remote(self.arm))
        while True:
            event: dict[str, Any] = ray.get(self.group.desk.next_event.remote(self.arm.id), timeout=PATIENCE)
            if "checkpoint" not in event:
                return event
            step = event["checkpoint"].step
            if step == self.slow_at:
                time.sleep(LONGER)
            ray.get(self.group.desk.decide.remote(self.arm.id, step, True))


def _rows_that_only_rank_1_cannot_hold(rows: list[TraceRow]) -> list[TraceRow]:
    """A giant teacher prompt for a row that is the second of the first step's batch."""
    second = next(batches(rows, 60, GOOD.seed))[1].id
    giant = np.ones(GIANT, np.int32)
    return [replace(row, teacher_prompt=giant) if row.id == second else row for row in rows]


def _overflowing(run: RunFolder, arm: Arm, step: int) -> None:
    """Have the arm go on from a state whose next optimizer step makes its prefix infinite."""
    state = {name: torch.full((3, 6, 2, 8), 0.1) for name in ("keys", "values")}
    moments = {f"{name}.exp_avg": torch.full((3, 5, 2, 8), 3e38) for name in state}
    squares = {f"{name}_sq": torch.zeros(3, 5, 2, 8) for name in moments}
    counters = {"step": step, "loss": 1.5, "grad_norm": 0.5, "targets_seen": 9, "tokens_seen": 20, "first_loss": 1.5}
    ArmStore(run.arm(arm.id)).save_state({**state, **moments, **squares}, counters)


@pytest.fixture(scope="module")
def story(local_ray, tmp_path_factory):
    """One group and its arms in turn: arm id → last event; and the run."""
    folder = tmp_path_factory.mktemp("group")
    setup = _setup(folder / "run", save_tiny(tiny_model(), folder / "model"))
    run, rows = setup.run, taught_rows(12)
    TraceStore(run.traces("good")).append(rows)
    TraceStore(run.traces("giant")).append(_rows_that_only_rank_1_cannot_hold(rows))
    told = []
    group = start_training_group(setup, "story", told.append)
    arms = {
        "before": (GOOD, 2),
        "diverged": (replace(GOOD, id="diverged"), None),
        "infinite": (replace(GOOD, id="infinite"), None),
        "after": (replace(GOOD, id="after"), None),
        "giant": (replace(GOOD, id="giant", traces="giant"), None),
        "empty": (replace(GOOD, id="empty", traces="nothing"), None),
        "last": (replace(GOOD, id="last"), None),
    }
    _overflowing(run, arms["diverged"][0], step=2)
    _overflowing(run, arms["infinite"][0], step=3)
    ended = {}
    for name, (arm, slow_at) in arms.items():
        if name == "after":
            time.sleep(LONGER)  # an idle group waits for its next arm
        ended[name] = Trial(group, arm, slow_at).run()
    group.close()
    return ended, run, told


def _digests(run: RunFolder, arm: str) -> list[tuple[int, str, float | None]]:
    return [(one.step, one.digest, one.loss) for one in ArmStore(run.arm(arm)).checkpoints()]


def test_workers_wait_for_the_desk_longer_than_their_time_out(story):
    ended, run, told = story
    assert ended["before"] == {"end": True} and ended["after"] == {"end": True} and told == []
    assert [step for step, _, _ in _digests(run, "before")] == CHECKPOINTS


def test_an_arm_that_diverges_ends_alone_with_a_diagnosis(story):
    ended, run, _ = story
    failure = ended["diverged"]["failure"]
    assert (failure.status, failure.step, failure.is_final) == ("diverged", 4, True)
    assert failure.why.startswith("got loss nan and gradient norm ") and "\n" not in failure.why
    assert [step for step, _, _ in _digests(run, "diverged")] == [2]


def test_a_prefix_that_is_not_finite_is_not_published_and_ends_its_arm(story):
    ended, run, _ = story
    failure = ended["infinite"]["failure"]
    assert (failure.status, failure.step) == ("diverged", 4) and failure.why.startswith(
        "got a prefix that is not finite"
    )
    assert [step for step, _, _ in _digests(run, "infinite")] == [3]


def test_an_arm_that_one_worker_has_no_memory_for_ends_alone_with_a_diagnosis(story):
    failure = story[0]["giant"]["failure"]
    assert (failure.status, failure.is_final) == ("out of memory", False)
    assert failure.why.startswith("rank 1 had not enough memory (") and "\n" not in failure.why


def test_an_arm_without_a_trace_ends_alone(story):
    failure = story[0]["empty"]["failure"]
    assert (failure.status, failure.why) == (
        "failed",
        "training: got no trace that can be trained on, wanted at least one",
    )


@pytest.mark.parametrize("later", ["after", "last"])
def test_the_arms_after_a_failed_one_train_to_the_same_values(story, later):
    ended, run, _ = story
    assert ended[later] == {"end": True}
    assert _digests(run, later) == _digests(run, "before")


def test_costs_are_measured_over_all_workers(story):
    last = ArmStore(story[1].arm("before")).checkpoints()[-1]
    assert last.teacher_pass_seconds and 0 < last.teacher_pass_seconds < 60
    costs = stored_manifest(story[1].artifacts, last.digest).costs
    assert costs["teacher_pass_seconds"] == last.teacher_pass_seconds
    assert costs["training_seconds"] == last.training_seconds > 0
    assert costs["target_tokens_seen"] == last.targets_seen > 0 and costs["trace_rows"] == 12
    assert "trace_generation_seconds" not in costs, "nobody has measured it"


def test_a_sharded_backbone_is_whole_again_after_an_arm_that_diverged(local_ray, tmp_path):
    setup = _setup(tmp_path / "run", save_tiny(tiny_model(), tmp_path / "model"), zero_stage=3)
    TraceStore(setup.run.traces("good")).append(taught_rows(12))
    told = []
    group = start_training_group(setup, "sharded", told.append)
    diverged, after = replace(GOOD, id="diverged"), replace(GOOD, id="after")
    _overflowing(setup.run, diverged, step=2)
    events = [Trial(group, arm).run() for arm in (GOOD, diverged, after)]
    group.close()
    assert events[0] == events[2] == {"end": True} and events[1]["failure"].status == "diverged" and told == []
    assert _digests(setup.run, "after") == _digests(setup.run, "before")


def _await(condition) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_group_that_cannot_load_is_reported_at_once_and_to_every_trial(local_ray, tmp_path):
    told = []
    group = start_training_group(_setup(tmp_path, str(tmp_path / "no-model"), workers=1), "unloadable", told.append)
    _await(lambda: told)
    assert len(told) == 1 and told[0].startswith("the training group died: ") and "no-model" in told[0]
    with pytest.raises(ClusterError, match="no-model"):
        group.check()
    assert Trial(group, GOOD).run() == {"error": told[0]}


def test_a_group_that_is_killed_is_reported_and_one_that_is_cancelled_is_not(local_ray, tmp_path):
    model = save_tiny(tiny_model(), tmp_path / "model")
    told, untold = [], []
    killed = start_training_group(_setup(tmp_path / "killed", model, workers=1), "killed", told.append)
    cancelled = start_training_group(_setup(tmp_path / "cancelled", model, workers=1), "cancelled", untold.append)
    ray.get(killed.desk.enrol.remote(GOOD))
    cancelled.cancel()
    ray.cancel(killed.ended, force=True)
    _await(lambda: told)
    assert "error" in ray.get(killed.desk.next_event.remote(GOOD.id), timeout=PATIENCE)
    assert untold == []
