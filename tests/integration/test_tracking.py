"""MLflow's files lie inside the run, whatever the store's folder is called."""

import shutil
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from lpc_ray.adapters.mlflow import Tracker, own_database
from lpc_ray.config.job import load
from lpc_ray.errors import StorageError
from lpc_ray.run.arms import Arm
from lpc_ray.run.folder import RunFolder
from lpc_ray.storage import Store

CONFIG = Path(__file__).resolve().parents[2] / "jobs/configs/pi_scale.cpu.yaml"


@pytest.mark.parametrize(
    "name", ["a%20b", "c#d", "q?x", "%41%2F%00%", "plain", 'it\'s "ü 漢" +&;=@:u|<b>{x}[1]*~$HOME\\`id`\nline']
)
def test_mlflow_writes_inside_the_run_and_nowhere_else(tmp_path, name):
    config = load(CONFIG)
    run = RunFolder(Store(str(tmp_path / name)) / "demo")
    for decoded in ("a b", "c", "q", "A"):  # what the name might be taken for
        (tmp_path / decoded / "demo").mkdir(parents=True)
    before = set(tmp_path.rglob("*"))
    for _ in range(2):  # a rerun finds its runs again
        tracker = Tracker(config, "fingerprint", run)
        tracker.end({"report.json": b"{}"}, {"held_out.x": 0.5})
    made = set(tmp_path.rglob("*")) - before
    inside = tmp_path / name / "demo"
    assert {path for path in made if inside not in path.parents} <= {inside, inside.parent}
    assert {path.name for path in inside.iterdir()} == {"mlflow.db", "mlflow_artifacts"}
    assert len(list((inside / "mlflow_artifacts").rglob("report/report.json"))) == 1
    client = MlflowClient(tracking_uri=own_database(run))
    (experiment,) = [one for one in client.search_experiments() if one.name == "lpc_ray"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.metrics == {"held_out.x": 0.5}
    assert [file.path for file in client.list_artifacts(found.info.run_id, "report")] == ["report/report.json"]


def test_a_run_that_is_deleted_while_it_is_tracked_is_one_line(tmp_path, caplog):
    """Without the traceback that MLflow logs of what it raises."""
    run = RunFolder(Store(str(tmp_path)) / "demo")
    tracker = Tracker(load(CONFIG), "fingerprint", run)
    axes = {"num_tokens": 3, "seed": 0, "initializer_seed": 0, "induction_seed": 0}
    arm = Arm("arm", "ntp", "first_k", **axes, traces="t", general_traces=None, id="arm")
    tracker.log_step(arm, {"step": 1, "digest": "d", "score": 0.5})
    shutil.rmtree(tmp_path / "demo")
    for write in (
        lambda: tracker.log_step(arm, {"step": 2, "digest": "e", "score": 0.5}),
        lambda: tracker.end_arm(arm, "finished", None),
        lambda: tracker.end({}, {"held_out.x": 0.5}),
    ):
        with pytest.raises(
            StorageError, match=r"^tracking\.uri sqlite.*/demo/mlflow\.db: got attempt to write a readonly"
        ):
            write()
    assert not (tmp_path / "demo").exists() and "Traceback" not in caplog.text
