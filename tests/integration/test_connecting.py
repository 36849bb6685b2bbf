"""A job and what it connects to: a cluster or tracking server that is not there is one clear error, at once."""

import os
import re
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from lpc_ray.adapters import mlflow
from lpc_ray.adapters.mlflow import check_tracking
from lpc_ray.adapters.ray import cluster
from lpc_ray.adapters.ray.cluster import connect
from lpc_ray.config.job import load
from lpc_ray.errors import ClusterError, ConfigError, StorageError
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.plan import make_plan
from lpc_ray.storage import Store

ODD = (
    "nonsense",
    "ray://127.0.0.1:10001",
    "http://127.0.0.1:8265",
    ":6379",
    "localhost:99999",
    "a b:1",
    "::1",
    "h:1/",
)
ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "jobs/configs/pi_scale.cpu.yaml"


@pytest.fixture(autouse=True)
def without_a_cluster(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield
    assert not ray.is_initialized()


@pytest.fixture
def silent():
    """HOST:PORT of a server that takes connections and says nothing; on all addresses, as Ray asks this machine's own."""
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed():
    """HOST:PORT at which nothing listens, nor will while the test runs."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def plan_of(*overrides: str):
    return make_plan(load(CONFIG, list(overrides)))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        *((address, f"'{re.escape(address)}': wanted HOST:PORT of a Ray cluster's head, or auto$") for address in ODD),
        ("no-such-host.invalid:6379", r"'no-such-host\.invalid:6379': got .*[Dd]omain.*, wanted a Ray cluster's head"),
        ("", r"'{closed}': got .*Connection refused, wanted a Ray cluster's head at [0-9.]+:[0-9]+$"),
    ],
)
def test_an_address_that_no_cluster_answers_at_is_refused_by_its_name(closed, monkeypatch, address, message):
    address = address or closed
    message = message.replace("{closed}", closed)
    plan = plan_of(f"cluster.address={address}")
    started = time.monotonic()
    with pytest.raises(ClusterError, match=rf"^cluster\.address {message}"):
        connect(plan)
    monkeypatch.setenv("RAY_ADDRESS", address)
    for overrides in ([], ["cluster.address=auto"]):
        with pytest.raises(ClusterError, match=rf"^RAY_ADDRESS {message}"):
            connect(plan_of(*overrides))
    assert time.monotonic() - started < 3 * 15


def test_an_address_whose_server_says_nothing_is_refused_after_a_while(silent, monkeypatch):
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 1)
    monkeypatch.setenv("RAY_ADDRESS", silent)
    with pytest.raises(ClusterError, match=rf"^RAY_ADDRESS '{silent}': got no answer within 1 s, wanted a Ray cluster"):
        connect(plan_of())


def test_local_is_no_cluster():
    assert cluster.check_cluster("cluster.address", "local") is None


def test_a_local_ray_that_does_not_start_is_one_error(monkeypatch):
    """Ray raises a plain Exception where its dashboard is late, as on a machine that is too busy."""
    plan = plan_of()

    def late(**options):
        raise Exception("Failed to start a dashboard.\nThe last lines of its log:")

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(ClusterError, match="^a local Ray: got Exception .* a dashboard. The last lines of its log:$"):
        connect(plan)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://{closed}", r"http://{closed}: got .*Connection refused, wanted an MLflow server or database$"),
        ("http://u:secret@{closed}/x", r"http://u:\*\*\*@{closed}/x: got .*Connection refused, wanted an MLflow"),
        ("https://no-such-host.invalid", r"https://no-such-host\.invalid: got .*not known, wanted an MLflow server"),
        ("http://{silent}", r"http://{silent}: got no answer within 2 s, wanted an MLflow server or database$"),
        ("http://127.0.0.1:port", r"http://127\.0\.0\.1:port: got Port could not be cast to integer value as 'port'"),
        ("sqlite:////dev/null/x.db", r"sqlite:////dev/null/x\.db: got .*File exists: '/dev/null', wanted an MLflow"),
        ("mysql+pymysql://u:secret@{silent}/x", r"mysql\+pymysql://u:\*\*\*@{silent}/x: got No module named 'pymysql'"),
        ("postgresql://{closed}/x", r"postgresql://{closed}/x: got No module named 'psycopg"),
    ],
)
def test_tracking_that_does_not_answer_is_refused_by_its_uri(tmp_path, closed, silent, monkeypatch, uri, message):
    monkeypatch.setattr(mlflow, "ANSWER_SECONDS", 2)
    fill = {"{closed}": closed, "{silent}": silent}
    for name, value in fill.items():
        uri, message = uri.replace(name, value), message.replace(name, value)
    started = time.monotonic()
    with pytest.raises(StorageError, match=rf"^tracking\.uri {message}"):
        check_tracking(load(CONFIG, [f"tracking.uri={uri}"]), RunFolder(Store(str(tmp_path / "run"))))
    assert time.monotonic() - started < 15 and not (tmp_path / "run").exists()


def test_tracking_in_a_database_whose_folder_is_to_be_made_is_taken(tmp_path):
    check_tracking(load(CONFIG, [f"tracking.uri=sqlite:///{tmp_path}/new/x.db"]), RunFolder(Store(str(tmp_path))))


def test_a_remote_store_needs_a_tracking_server():
    with pytest.raises(ConfigError, match=r"^tracking\.uri: got none, wanted a server"):
        check_tracking(load(CONFIG), RunFolder(Store("memory://runs")))


@pytest.mark.parametrize(("job", "where"), [("induce", "RAY_ADDRESS"), ("pi_scale", "tracking.uri")])
def test_a_job_whose_server_is_dead_is_one_line_and_writes_nothing(tmp_path, closed, job, where):
    environment, overrides = {**os.environ}, [f"store.url={tmp_path}/runs"]
    if where == "RAY_ADDRESS":
        environment["RAY_ADDRESS"] = closed
    else:
        overrides.append(f"tracking.uri=http://{closed}")
    command = [sys.executable, f"jobs/{job}.py", *overrides]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2 and not (tmp_path / "runs").exists()
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {where} ") and "Connection refused" in line


def test_a_limit_of_open_files_is_raised_or_refused_at_once(monkeypatch):
    """Ray's processes wait for each other in silence where they may open too few."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        cluster.check_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (cluster.OPEN_FILES, limits[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    with pytest.raises(ClusterError, match=r"^ulimit -n: got at most 64 open files, wanted 1024 for Ray$"):
        cluster.check_open_files()
