"""A run's paths on disk, which stay as they are: earlier runs are resumed and reported."""

import pickle

from lpc_ray.artifacts.handles import set_handle
from lpc_ray.run.folder import RunFolder
from lpc_ray.storage import Store


def test_the_paths_of_a_run_stay_as_they_are(tmp_path):
    run = pickle.loads(pickle.dumps(RunFolder(Store(str(tmp_path)))))
    run.arm("a").write_json("end-p.json", {})
    run.outcomes("p").write_json("s.tune.json", [])
    run.traces("t").write_json("induction.json", {})
    run.artifacts.write_json("d/lpc.json", {})
    run.store.write_json(run.baseline("first_k"), {})
    run.store.write_json(run.off_source("p", "d"), {})
    set_handle(run.store, "demo", "d" * 32)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")}
    assert files == {
        "arms/a/end-p.json",
        "outcomes/p/s.tune.json",
        "traces/t/induction.json",
        "artifacts/d/lpc.json",
        "baselines/first_k.json",
        "off_source/p/d.json",
        "handles/demo.json",
    }
    assert run.arm_ids() == ["a"] and run.protocols() == ["p"]
    assert run.scratch("ray_tune") == f"{tmp_path}/ray_tune" and run.report_page == f"{tmp_path}/report.html"


def test_a_remote_runs_scratch_is_a_url():
    assert RunFolder(Store("memory://runs/demo")).scratch("ray_train") == "memory://runs/demo/ray_train"
