"""A sweep on Ray Tune whose training fails for some arms; what trains is scripted, what stops, verifies and records is not."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from lpc_ray.adapters.ray.desk import TrainingDesk
from lpc_ray.adapters.ray.sweep import SweepWatcher, TrialSetup, sweep
from lpc_ray.artifacts.store import publish
from lpc_ray.config.job import load
from lpc_ray.report.ledger.ledger import rows
from lpc_ray.run.checkpoints import ArmFailure, ArmStore, Checkpoint
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.plan import make_plan
from lpc_ray.run.records import arm_record, verifier
from lpc_ray.storage import Store
from tests.tiny import IDENTITY

ROOT = Path(__file__).resolve().parents[2]
SWEEP = "recipe.sweep=[{induction: curated, objective: ntp, initializer: first_k, seed: [0, 1, 2]}]"
LAST = 2


def _ignorant_pool() -> Any:
    """An engine that knows nothing; its class is local, so that it is pickled by value and needs no test module elsewhere."""

    class Pool:
        def generate(self, asks):
            from lpc_ray.records import Reply

            none = np.zeros((0, 20), np.int32)
            return [Reply("I do not know.", (5, 2), "stop", 9, none[:, 0], none, none) for _ in asks]

    return Pool()


@pytest.fixture(scope="module")
def local_ray():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def _train(run: RunFolder, desk, failures: dict[int, ArmFailure], begun: list[str]) -> None:
    """What worker 0 does: an artifact per step, until the arm's seed has a failure at it."""
    while (arm := ray.get(desk.next_arm.remote())) is not None:
        begun.append(arm.name)
        failure = failures.get(arm.seed)
        for step in range(LAST + 1 if failure is None else failure.step):
            keys = torch.full((3, 4, 2, 8), float(step + 10 * arm.seed))
            digest = publish(run.artifacts, keys, keys.clone(), IDENTITY, 1).digest
            checkpoint = Checkpoint(step, digest, None if step == 0 else 1.0, None, 0, 0, float(step), 0.0)
            ArmStore(run.arm(arm.id)).add_checkpoint(checkpoint)
            ray.get(desk.report.remote(arm.id, checkpoint))
        ray.get(desk.finish.remote(arm.id, failure))


def _sweep(plan, run: RunFolder, failures: dict[int, ArmFailure], folder: Path) -> tuple[list[str], list[str], dict]:
    """The errors of a whole sweep, the arms whose training was begun, and how each arm ended."""
    desk = ray.remote(TrainingDesk).options(num_cpus=0, max_concurrency=16).remote()
    begun, ended = [], {}
    worker = threading.Thread(target=_train, args=(run, desk, failures, begun))
    worker.start()
    setup = TrialSetup(
        arms={arm.name: arm for arm in plan.arms},
        run=run,
        verifier=verifier(plan, run),
        pool=_ignorant_pool(),
        desk=desk,
        first_decision=LAST,
        last_step=LAST,
        cache=folder / "cache",
    )
    watcher = SweepWatcher(setup, lambda arm, result: None, lambda arm, end: ended.update({arm.name: end}))
    errors = sweep(plan.arms, setup, plan.config.recipe.stopping, 24, watcher, "failing")
    ray.get(desk.close.remote())
    worker.join(60)
    return errors, begun, ended


def test_a_failed_arm_ends_alone_and_only_one_that_diverged_is_never_tried_again(local_ray, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    plan = make_plan(load(ROOT / "jobs/configs/pi_scale.cpu.yaml", [SWEEP, f"recipe.training.steps={LAST}"]))
    run = RunFolder(Store(str(tmp_path / "run")))
    names = [arm.name for arm in plan.arms]
    diverged = ArmFailure("diverged", 2, "got loss nan")
    memory = ArmFailure("out of memory", 1, "rank 1 had not enough memory")
    errors, begun, ended = _sweep(plan, run, {0: diverged, 1: memory}, tmp_path)
    assert errors == [] and begun == names
    assert [ended[name]["status"] for name in names] == ["diverged", "out of memory", "finished"]
    assert ended[names[0]]["why"] == "got loss nan"

    def shown() -> list[tuple[str, list[int]]]:
        records = [arm_record(plan, run, arm) for arm in plan.arms]
        found = {row.name: row.status for row in rows(records, [])}
        return [(found[record.name], [step.step for step in record.steps]) for record in records]

    finished = ("finished", [0, 1, 2])
    told = ("diverged at step 2: got loss nan", [0, 1])
    assert shown() == [told, ("out of memory at step 1: rank 1 had not enough memory", [0]), finished]
    errors, begun, ended = _sweep(plan, run, {}, tmp_path)
    assert errors == [] and begun == [names[1]]
    assert shown() == [told, finished, finished]
    other = replace(plan, protocol="another")
    assert arm_record(other, run, plan.arms[0]).status == "diverged", "under any protocol"
