"""The main job through real engines: refusals, kills and reruns, and submission to a cluster of two CPUs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import psutil
import pytest

from lpc_ray.artifacts.store import load_prefix, stored_manifest
from lpc_ray.model.embedded import fetch_embedded_model
from lpc_ray.model.identity import model_identity
from lpc_ray.storage import Store
from lpc_ray.traces.store import TraceStore
from tests.shared_memory import segments_of

ROOT = Path(__file__).resolve().parents[2]
ARROW = [
    "recipe.training.steps=2",
    "recipe.stopping={grace_steps: 1, tolerance_errors: 10}",  # each step may be the last one, and none is
    "recipe.sweep=[{induction: curated, objective: ntp, initializer: [strided_rope, first_k]}]",
]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Four tune and four held-out cases of the demo, so that verification takes seconds."""
    lines = [json.loads(line) for line in (ROOT / "data/demo/cases.jsonl").read_text().splitlines()]
    few = [[line for line in lines if line["split"] == split][:4] for split in ("tune", "held_out")]
    path = tmp_path_factory.mktemp("cases") / "cases.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in few[0] + few[1]))
    return path


def _command(job: str, *arguments: str) -> list[str]:
    return [sys.executable, f"jobs/{job}.py", *arguments]


def _rows(store: Path, name: str) -> dict:
    return json.loads((store / name / "report.json").read_text())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["recipe.source.paths=[{tmp}/empty.md]"], "empty document"),
        (["recipe.source.paths=[{tmp}/latin.md]"], "not UTF-8"),
        (["recipe.source.paths=[{tmp}/short.md]"], "wanted at least num_tokens = 128"),
        (["recipe.sweep.0.num_tokens=0"], "recipe.sweep.0.num_tokens.0: got 0, wanted an integer from 1 to"),
        (["recipe.sweep.0.num_tokens=1"], "got 1, wanted more than recipe.prefix.frozen_tokens = 1"),
        (["recipe.induction.families.curate={}"], "did you mean 'curated'"),
        (["recipe.verification.cases={tmp}/cases.jsonl"], "line 1: field 'answers' is missing"),
        (["recipe.trainin.lr=1"], "did you mean 'training'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_writes_nothing(tmp_path, overrides, message):
    (tmp_path / "empty.md").write_text("")
    (tmp_path / "latin.md").write_bytes(b"caf\xe9")
    (tmp_path / "short.md").write_text("Too short.")
    (tmp_path / "cases.jsonl").write_text('{"id": "c", "question": "q", "split": "tune"}')
    overrides = [override.replace("{tmp}", str(tmp_path)) for override in overrides]
    store = tmp_path / "runs"
    result = subprocess.run(
        _command("pi_scale", f"store.url={store}", *overrides), cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 2
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not store.exists()


def test_an_engine_that_cannot_start_is_one_line(tmp_path):
    result = subprocess.run(
        _command("verify", f"store.url={tmp_path}", "cluster.engine.extra={quantization: nonsense}"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 2
    assert result.stderr.strip().splitlines()[-1].startswith("error: vLLM cannot start with model")


def test_a_store_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("a file")
    result = subprocess.run(
        _command("induce", f"store.url={tmp_path}/runs"), cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 2 and "/runs is no folder, wanted one" in result.stderr.strip().splitlines()[-1]


def _wait_for(log: Path, text: str, process: subprocess.Popen, seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def _descendants(process: subprocess.Popen, title: str) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children(recursive=True) if title in _title(child)]


def _title(process: psutil.Process) -> str:
    """The command line; empty of one that has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # zombies among them
        return ""


def _descendant(process: subprocess.Popen, title: str) -> psutil.Process:
    found = _descendants(process, title)
    assert found, f"no process {title!r} below the driver"
    return found[0]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("sign", "number"),
    [("", None), ("a segment", signal.SIGINT), ("scores to find", signal.SIGTERM), ("scores to find", signal.SIGKILL)],
)
def test_a_job_leaves_no_shared_memory_however_it_ends(tmp_path, cases, sign, number):
    """By itself; by Ctrl-C as soon as the loading engine shares memory; while it verifies; killed then."""
    log, seen = tmp_path / "log", set()
    command = _command("verify", "name=ends", f"store.url={tmp_path}", f"recipe.verification.cases={cases}")
    with open(log, "w") as sink:
        job = subprocess.Popen(command, cwd=ROOT, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
    deadline = time.monotonic() + 600
    while job.poll() is None and time.monotonic() < deadline:
        seen |= segments_of(job.pid)
        if number and (seen if sign == "a segment" else sign in log.read_text()):
            os.killpg(job.pid, number) if number == signal.SIGINT else job.send_signal(number)
            asked = time.monotonic()
            job.wait(timeout=60)
            assert time.monotonic() - asked < 30
        time.sleep(0.5)
    job.kill()
    assert job.wait() == {None: 0, signal.SIGKILL: -9}.get(number, 130), log.read_text()
    deadline = time.monotonic() + 30
    while (left := {path for path in seen if path.exists()}) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert seen and not left
    if number in (signal.SIGINT, signal.SIGTERM):
        assert log.read_text().splitlines()[-1].startswith("interrupted:")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("loss", "message"), [("deleted", "not|readonly|No such file"), ("full", "full|No space left")]
)
def test_a_store_that_is_lost_while_the_sweep_runs_is_one_line(tmp_path, cases, loss, message):
    """`deleted`: the folder goes. `full`: on a file system of its own, which is filled through the job's own root."""
    disk, log = tmp_path / "disk", tmp_path / "log"
    disk.mkdir()
    job = _command(
        "pi_scale", f"store.url={disk}/runs", f"recipe.verification.cases={cases}", *ARROW, "recipe.training.steps=40"
    )
    mount = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=2g none {disk} && exec "$@"', "sh"]
    with log.open("w") as output:
        process = subprocess.Popen([*mount, *job] if loss == "full" else job, cwd=ROOT, stdout=output, stderr=output)
    _wait_for(log, "step 1/40", process)
    if loss == "full":
        with pytest.raises(OSError), open(f"/proc/{process.pid}/root{disk}/filler", "wb") as filler:
            while True:
                filler.write(bytes(1 << 20))
    else:
        shutil.rmtree(disk, ignore_errors=True)
    assert process.wait(300) == 2
    *lines, last = log.read_text().splitlines()
    assert re.search(rf"^error: .*({message})", last) and not any("Traceback" in line for line in lines), (
        log.read_text()
    )


@pytest.mark.timeout(1800)
def test_killed_actor_engine_worker_and_driver_lose_nothing_and_a_third_run_reuses_everything(tmp_path, cases):
    source = tmp_path / "source" / os.fsdecode(b"hand\xe9book.md")  # no UTF-8, and still to be named in every report
    source.parent.mkdir()
    shutil.copy(ROOT / "data/demo/handbook.md", source)
    arguments = ["name=kill", f"store.url={tmp_path}", f"recipe.verification.cases={cases}", *ARROW]
    arguments.append(f"recipe.source.paths=[{source.parent}]")
    log = tmp_path / "first.log"
    with open(log, "w") as sink:
        driver = subprocess.Popen(_command("pi_scale", *arguments), cwd=ROOT, stdout=sink, stderr=subprocess.STDOUT)
    _wait_for(log, "induce", driver)
    actor = None
    deadline = time.monotonic() + 120
    while actor is None and time.monotonic() < deadline and "/210 units" not in log.read_text():
        found = _descendants(driver, "MapWorker")
        actor = found[0] if found else None
        time.sleep(0.05)
    assert actor is not None, "no induction actor was seen"
    actor.kill()
    _wait_for(log, "no_context, tune", driver)
    _descendant(driver, "VLLM::EngineCore").kill()
    _wait_for(log, "strided_rope-p128-s0 step 1/2", driver)
    _descendant(driver, "RayTrainWorker").kill()
    _wait_for(log, "first_k-p128-s0 step 0/2", driver)
    driver.send_signal(signal.SIGKILL)
    driver.wait()

    second = subprocess.run(_command("pi_scale", *arguments), cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert second.returncode == 0, second.stdout + second.stderr
    report = _rows(tmp_path, "kill")
    assert report["facts"]["document"] == r"hand\xe9book.md"
    assert [arm["status"] for arm in report["arms"]] == ["finished", "finished"]
    [traces] = (tmp_path / "kill" / "traces").iterdir()
    assert len(TraceStore(Store(str(traces))).rows()) == 210
    identity = model_identity(str(fetch_embedded_model()))
    artifacts = sorted((tmp_path / "kill" / "artifacts").iterdir())
    assert len(artifacts) == 6, "three checkpoints per arm; first_k at step 0 is the untrained prefix itself"
    kinds = set()
    for folder in artifacts:
        manifest, _, _ = load_prefix(folder, identity)
        step = manifest.provenance["optimizer_steps"]
        kinds.add((step, manifest.kind))
        assert manifest.digest == folder.name and {"recipe", "source", "initializer"} <= set(manifest.provenance)
        assert manifest.verification["tune"]["total"] > 0 and ("arm" in manifest.provenance) is (step > 0)
        assert ("training_seconds" in manifest.costs) is ("trace_rows" in manifest.costs) is (step > 0)
    assert kinds == {(0, "kv_prefix"), (1, "reasoncache"), (2, "reasoncache")}
    scored = {arm["digest"]: arm for arm in report["arms"]}
    for digest, arm in scored.items():
        held_out = stored_manifest(Store(f"{tmp_path}/kill/artifacts"), digest).verification["held_out"]
        assert held_out == {"passed": arm["passed"], "total": arm["total"]}

    runs = mlflow.MlflowClient(f"sqlite:///{tmp_path}/kill/mlflow.db")
    experiment = runs.get_experiment_by_name("lpc_ray")
    children = [run for run in runs.search_runs([experiment.experiment_id]) if "lpc.arm" in run.data.tags]
    assert len(children) == 2
    for child in children:
        assert [metric.step for metric in runs.get_metric_history(child.info.run_id, "tune_score")] == [0, 1, 2]
        assert any(file.path == "lpc" for file in runs.list_artifacts(child.info.run_id))

    started = time.monotonic()
    third = subprocess.run(_command("pi_scale", *arguments), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert third.returncode == 0 and "starting" not in third.stdout, third.stdout
    assert time.monotonic() - started < 120
    assert _rows(tmp_path, "kill")["arms"] == report["arms"]


@pytest.mark.timeout(1800)
def test_the_job_runs_on_a_cluster_of_two_cpus_by_submission_with_two_zero3_workers(tmp_path, cases):
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "disabled",
    }
    ray = [str(Path(sys.executable).parent / "ray")]
    subprocess.run([*ray, "start", "--head", "--num-cpus=2", "--port=0"], check=True, env=environment, timeout=120)
    try:
        job = [
            "jobs/pi_scale.py",
            "name=submitted",
            f"store.url={tmp_path}",
            f"recipe.verification.cases={cases}",
            "cluster.training.workers=2",
            "cluster.training.zero_stage=3",
            "cluster.training.threads=1",
            *ARROW,
        ]
        submit = [*ray, "job", "submit", "--working-dir", ".", "--", *job]
        environment["RAY_ADDRESS"] = "http://127.0.0.1:8265"
        result = subprocess.run(submit, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800)
        assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    finally:
        subprocess.run([*ray, "stop", "--force"], env=environment, timeout=60, capture_output=True)
    report = _rows(tmp_path, "submitted")
    assert [arm["status"] for arm in report["arms"]] == ["finished", "finished"]
    assert {"no_context", "full_document", "truncated", "text_prefill"} <= {row["name"] for row in report["baselines"]}
    page = (tmp_path / "submitted" / "report.html").read_text()
    assert "curated-ntp-first_k-p128-s0" in page
