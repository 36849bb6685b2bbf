"""The main job with a verifier that runs code, an off-source measure and a gate, through real engines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lpc_ray.artifacts.store import read_manifest
from lpc_ray.errors import ArtifactError
from lpc_ray.verification.gate import require_passed

ROOT = Path(__file__).resolve().parents[2]
OFF_SOURCE = [
    {"id": "g1", "question": "What is the capital of France?", "answers": ["Paris"]},
    {"id": "g2", "question": "How many days are in a week?", "answers": ["7", "seven"]},
    {"id": "u1", "question": "What is the shoe size of Tern's skipper?", "answers": []},
]


@pytest.mark.timeout(1200)
def test_a_skill_is_verified_by_its_tasks_and_its_prefix_is_put_to_the_gate(tmp_path):
    off_source = tmp_path / "off_source.jsonl"
    off_source.write_text("\n".join(map(json.dumps, OFF_SOURCE)))
    settings = "{tune: [survey-units], held_out: [tide-codec], attempts: 2}"
    command = [
        *(sys.executable, "jobs/pi_scale.py", "name=skill", f"store.url={tmp_path}"),
        "recipe.source.paths=[data/tasks/survey-units]",
        "recipe.induction.families={raw: {window_tokens: 128}}",
        f"recipe.verification={{kind: skillsbench, cases: data/tasks, max_tokens: 48, settings: {settings}}}",
        f"recipe.off_source={{cases: {off_source}, max_tokens: 16}}",
        "recipe.gate={min_held_out: 0.5, max_kl_drift: 100}",
        "recipe.training.steps=2",
        "recipe.sweep=[{induction: raw, objective: ntp, initializer: first_k, num_tokens: 64}]",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "task survey-units: the reference passes all 7 tests, doing nothing passes 0" in result.stdout

    report = json.loads((tmp_path / "skill" / "report.json").read_text())
    [arm] = report["arms"]
    assert arm["total"] == 11 and arm["tune_total"] == 7
    manifest = read_manifest(tmp_path / "skill" / "artifacts" / arm["digest"])
    off = manifest.verification["off_source"]
    assert 0 < off["kl_drift"] < 100 and off["accuracy"] in (0, 0.5, 1) and off["abstention"] in (0, 1)
    assert manifest.verification["gate"]["thresholds"]["min_held_out"] == 0.5
    assert manifest.verification["gate"]["passed"] is (arm["score"] >= 0.5)
    if arm["score"] < 0.5:
        with pytest.raises(ArtifactError, match="got held_out"):
            require_passed(manifest, "here")

    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0 and "starting" not in again.stdout, again.stdout + again.stderr
