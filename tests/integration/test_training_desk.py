"""The desk between trials and the training group, as an actor on local Ray: what of its steps reaches the terminal."""

from pathlib import Path

import pytest
import ray

from lpc_ray.adapters.ray.desk import TrainingDesk
from lpc_ray.adapters.ray.group import TrainingGroup
from lpc_ray.adapters.ray.machines import Machines
from lpc_ray.config.job import load
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.plan import make_plan
from lpc_ray.storage import Store
from lpc_ray.terminal import Console

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def desk():
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield ray.remote(TrainingDesk).options(num_cpus=0, max_concurrency=8).remote()
    ray.shutdown()


def test_a_step_is_reported_once_and_a_dead_desk_reports_nothing(desk, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    machines = Machines(
        make_plan(load(ROOT / "jobs/configs/pi_scale.cpu.yaml")), RunFolder(Store(str(tmp_path))), Console()
    )
    assert machines.news() is None
    machines.training_group = TrainingGroup(desk, None)
    assert machines.news() is None
    for step, loss in ((1, 2.0), (2, 1.5)):
        ray.get(desk.note_step.remote("an arm", step, loss))
    assert machines.news() == ("train", "an arm at step 2/40, loss 1.500")
    assert machines.news() is None
    ray.get(desk.note_step.remote("another arm", 2, 3.25))
    assert machines.news() == ("train", "another arm at step 2/40, loss 3.250")
    ray.kill(desk)
    assert machines.news() is None
