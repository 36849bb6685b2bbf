"""A job and its cluster: what cannot be joined is one clear error, before anything has been started."""

from pathlib import Path

import pytest
import ray

from lpc_ray.adapters.ray.machines import connect
from lpc_ray.config.job import load
from lpc_ray.errors import ClusterError
from lpc_ray.run.plan import make_plan

ROOT = Path(__file__).resolve().parents[2]


def test_an_address_that_is_none_is_refused_by_its_name(monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = make_plan(load(ROOT / "jobs/configs/pi_scale.cpu.yaml", ["cluster.address=nonsense"]))
    with pytest.raises(
        ClusterError, match=r"^cluster\.address 'nonsense': got ValueError from Ray, wanted a cluster: "
    ):
        connect(plan)
    assert not ray.is_initialized()


def test_a_local_ray_that_does_not_start_is_one_error(monkeypatch):
    """Ray raises a plain Exception where its dashboard is late, as on a machine that is too busy."""
    monkeypatch.chdir(ROOT)
    plan = make_plan(load(ROOT / "jobs/configs/pi_scale.cpu.yaml"))

    def late(**options):
        raise Exception("Failed to start a dashboard.\nThe last lines of its log:")

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(ClusterError, match="^a local Ray: got Exception .* a dashboard. The last lines of its log:$"):
        connect(plan)
