"""What a run remembers of its induction, from scripted traces in a real store."""

from pathlib import Path

import pytest
import torch

from lpc_ray.artifacts.store import publish, record_verification
from lpc_ray.config.job import load
from lpc_ray.errors import DataError, StorageError
from lpc_ray.records import Outcome
from lpc_ray.report.report import write_report
from lpc_ray.run.checkpoints import ArmStore, Checkpoint
from lpc_ray.run.costs import trace_costs
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.plan import make_plan
from lpc_ray.run.records import arm_record, check_reportable
from lpc_ray.run.trace_quality import INDUCTION_FILE, add_induction_seconds, induction_reports, judge_induction
from lpc_ray.storage import Store
from lpc_ray.traces.inducer import Inducer
from lpc_ray.traces.store import TraceStore
from lpc_ray.verification.outcomes import OutcomeStore
from tests.scripted import Teacher, reply
from tests.tiny import tiny_identity, tiny_model

ROOT = Path(__file__).resolve().parents[2]
SWEEP = "recipe.sweep=[{induction: ss, objective: kl, initializer: first_k}]"


@pytest.fixture
def plan(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    (tmp_path / "general.jsonl").write_text('{"prompt": "Hello"}\n{"prompt": "Goodbye"}')
    overrides = [
        SWEEP,
        "recipe.training.teacher_tokens=30",
        "recipe.training.general_share=0.1",
        f"recipe.induction.families.general={{paths: [{tmp_path}/general.jsonl]}}",
        "recipe.induction.families.ss.conversations_per_chunk=4",
    ]
    return make_plan(load(ROOT / "jobs/configs/pi_scale.cpu.yaml", overrides))


def _induce(plan, run, one):
    inducer = Inducer(plan.induction_task(one))
    teacher = Teacher(lambda ask: reply("The ferry to Atlantis sails at 4718.") if ask.top_k else reply("Which ferry?"))
    TraceStore(run.traces(one.id)).append(inducer.rows(plan.units(one.family, one.induction_seed), teacher))


def test_induction_is_recorded_judged_and_counted_up_to_the_budget(plan, tmp_path):
    run, [arm] = RunFolder(Store(str(tmp_path))), plan.arms
    source, general = arm.trace_sets
    assert induction_reports(plan, run) == []
    for one, seconds in ((source, 2.0), (general, 1.0)):
        _induce(plan, run, one)
        add_induction_seconds(run, one, seconds)
        assert induction_reports(plan, run) == [] or one is general
        judge_induction(plan, run, one)
    add_induction_seconds(run, source, 3.0)
    records = {record["family"]: record for record in induction_reports(plan, run)}
    assert records["ss"]["seconds"] == 5.0 and records["general"]["seconds"] == 1.0
    quality = records["ss"]["quality"]
    assert quality["kept"] == 8 and quality["teacher_tokens"] == 48 and quality["duplicates"] == 7
    assert quality["grounding"]["numbers"] == {"stated": 0, "absent": 0}, (
        "the engine's tokens, not the text, are judged"
    )
    assert records["general"]["quality"]["grounding"] is None
    counts = trace_costs(run, arm, plan.config.recipe.training)
    assert counts["teacher_tokens"] == 30 + 6 and counts["trace_rows"] == 5 + 2
    assert counts["trace_generation_seconds"] == 6.0
    write_report(run.store, "t", {}, [], [], induction=induction_reports(plan, run))
    assert "general" in run.store.read_bytes("report.html").decode()
    assert [record["family"] for record in run.store.read_json("report.json")["induction"]] == ["ss", "general"]
    run.traces(arm.traces).remove(INDUCTION_FILE)
    assert trace_costs(run, arm, plan.config.recipe.training)["trace_generation_seconds"] is None, "half is not known"


def test_a_report_of_no_arm_or_of_missing_scores_is_refused(plan, tmp_path):
    run, [arm] = RunFolder(Store(str(tmp_path))), plan.arms
    store = ArmStore(run.arm(arm.id))

    def check():
        check_reportable(plan, run, [arm_record(plan, run, arm)])

    with pytest.raises(DataError, match="got no checkpoint of this recipe's 1 arms"):
        check()
    store.add_checkpoint(Checkpoint(0, "d" * 32, None, None, 0, 0, 0.0))
    check()
    OutcomeStore(run.outcomes("another"), "another").put("no_context", "tune", [])
    with pytest.raises(
        DataError, match=f"scores of the protocols another only, wanted some of .* {plan.protocol}: .*Nothing"
    ):
        check()
    OutcomeStore(run.outcomes(plan.protocol), plan.protocol).put("no_context", "tune", [])
    check()
    store.set_end(plan.protocol, "stopped", 0)
    with pytest.raises(DataError, match="has ended, but its scores are missing"):
        check()


def test_the_gates_word_in_a_report_is_the_artifacts(plan, tmp_path):
    run, [arm] = RunFolder(Store(str(tmp_path))), plan.arms
    manifest = publish(run.artifacts, torch.ones(3, 3, 2, 8), torch.ones(3, 3, 2, 8), tiny_identity(tiny_model()), 1)
    ArmStore(run.arm(arm.id)).add_checkpoint(Checkpoint(0, manifest.digest, None, None, 0, 0, 0.0))
    for split in ("tune", "held_out"):
        outcome = Outcome(f"{split}-1", "pass", "", 1, 1, "", 1, 1, 0.1, plan.protocol)
        OutcomeStore(run.outcomes(plan.protocol), plan.protocol).put(manifest.digest, split, [outcome])
    assert arm_record(plan, run, arm).gate is None
    failed = {"passed": False, "reasons": ["got held_out 0, wanted at least 0.5"]}
    record_verification(run.artifacts, manifest.digest, "another protocol", gate=failed)
    assert arm_record(plan, run, arm).gate is None
    record_verification(run.artifacts, manifest.digest, plan.protocol, gate=failed)
    assert arm_record(plan, run, arm).gate == "got held_out 0, wanted at least 0.5"
    record_verification(run.artifacts, manifest.digest, plan.protocol, gate={"passed": True, "reasons": []})
    assert arm_record(plan, run, arm).gate == "passed"


@pytest.mark.parametrize("damage", ["{}", "[1]", '{"step": 1, "colour": "red"}'])
def test_a_damaged_record_of_an_arm_is_named(tmp_path, damage):
    run = RunFolder(Store(str(tmp_path)))
    run.store.write_bytes("arms/a/step-00000001.json", damage.encode())
    run.store.write_bytes("arms/a/end-p.json", b"{}")
    run.store.write_bytes("outcomes/p/s.tune.json", b'[1, "x"]')
    for read in (
        ArmStore(run.arm("a")).checkpoints,
        lambda: ArmStore(run.arm("a")).end("p"),
        lambda: OutcomeStore(run.outcomes("p"), "p").get("s", "tune"),
    ):
        with pytest.raises(StorageError, match=str(tmp_path)):
            read()
