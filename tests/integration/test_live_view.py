"""A sweep watched while it runs: what Prometheus can scrape, what the dashboard asks for, what TensorBoard is given."""

import json
import pickle
import re
import socket
import time
import urllib.request
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.tune import RunConfig
from tensorboardX.proto.event_pb2 import Event

from lpc_ray.adapters.ray.live_view import OptimizerStepTensorBoard, SweepGauges
from lpc_ray.adapters.ray.sweep import folder_name

DASHBOARD = Path(__file__).parents[2] / "cluster" / "dashboards" / "sweep.json"
RESULTS = [
    {"step": 0, "score": 0.0, "loss": None, "tokens_seen": 0, "training_seconds": 0.0},
    {"step": 8, "score": 0.25, "loss": 2.0, "tokens_seen": 4000, "training_seconds": 10.0},
    {"step": 16, "score": 0.75, "loss": 1.5, "tokens_seen": 7000, "training_seconds": 20.0},
]
EXPECTED = {
    'ray_lpc_sweep_score{arm="a",run="demo"}': 0.75,
    'ray_lpc_sweep_step{arm="a",run="demo"}': 16,
    'ray_lpc_sweep_loss{arm="a",run="demo"}': 1.5,
    'ray_lpc_sweep_tokens_per_second{arm="a",run="demo"}': 300,
    'ray_lpc_sweep_score_at_step{arm="a",run="demo",step="0"}': 0,
    'ray_lpc_sweep_score_at_step{arm="a",run="demo",step="8"}': 0.25,
    'ray_lpc_sweep_score_at_step{arm="a",run="demo",step="16"}': 0.75,
    'ray_lpc_sweep_arms{run="demo",state="finished"}': 1,
    'ray_lpc_sweep_arms{run="demo",state="waiting"}': 1,
    'ray_lpc_sweep_arms{run="demo",state="running"}': 0,
    'ray_lpc_sweep_arms{run="demo",state="stopped"}': 0,
    'ray_lpc_sweep_arms{run="demo",state="failed"}': 0,
}


@pytest.fixture(scope="module")
def metrics_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"metrics_report_interval_ms": 2000}
    ray.init(address="local", num_cpus=2, log_to_driver=False, _metrics_export_port=port, _system_config=settings)
    yield port
    ray.shutdown()


def scraped(port: int) -> dict[str, float]:
    """The sweep's series with their own labels only."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for name, labels, value in re.findall(r"^(ray_lpc_\w+)\{(.*)\} (\S+)$", "\n".join(lines), re.MULTILINE):
        own = sorted(re.findall(r'\b(?:arm|run|state|step)="[^"]*"', labels))
        found[f"{name}{{{','.join(own)}}}"] = float(value)
    return found


def test_prometheus_scrapes_every_gauge_that_the_dashboard_asks_for(metrics_port):
    gauges = SweepGauges("demo", ["a", "b"])
    with gauges.shown():
        pickle.dumps(gauges)
        for result in RESULTS:
            gauges.result("a", result)
        gauges.ended("a", "finished")
        found: dict[str, float] = {}
        deadline = time.monotonic() + 60
        while found != EXPECTED and time.monotonic() < deadline:
            time.sleep(1)
            try:
                found = scraped(metrics_port)
            except OSError:  # the agent is still starting
                continue
        assert found == EXPECTED
        time.sleep(10)  # five reports of Ray's agent later
        assert scraped(metrics_port) == EXPECTED
    asked = set(re.findall(r"ray_lpc_\w+", DASHBOARD.read_text()))
    assert asked == {series.partition("{")[0] for series in found}


def test_the_dashboards_panels_have_titles_units_and_do_not_overlap():
    dashboard = json.loads(DASHBOARD.read_text())
    taken = set()
    for panel in dashboard["panels"]:
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken
        taken |= cells


def test_tensorboard_is_given_the_score_at_its_optimizer_step_under_the_arms_name(metrics_port, tmp_path):
    def trial(config):
        for result in RESULTS:
            tune.report({name: value for name, value in result.items() if value is not None})

    tune.Tuner(
        tune.with_resources(trial, {"cpu": 0.5}),
        param_space={"arm": tune.grid_search(["curated-ntp-sci-p128-s0"])},
        tune_config=tune.TuneConfig(trial_dirname_creator=folder_name),
        run_config=RunConfig(
            name="sweep", storage_path=str(tmp_path), verbose=0, callbacks=[OptimizerStepTensorBoard()]
        ),
    ).fit()
    (log,) = (tmp_path / "sweep").glob("curated-ntp-sci-p128-s0-*/events.out.tfevents.*")
    assert scalars(log.read_bytes(), "ray/tune/score") == {0: 0.0, 8: 0.25, 16: 0.75}


def scalars(data: bytes, tag: str) -> dict[int, float]:
    """Step → value of one tag in a file of TFRecords: length, its checksum, an Event, its checksum."""
    found, at = {}, 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        event = Event.FromString(data[at + 12 : at + 12 + length])
        for value in event.summary.value:
            if value.tag == tag:
                found[event.step] = value.simple_value
        at += 16 + length
    return found
