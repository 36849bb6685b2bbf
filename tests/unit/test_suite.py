"""Runs over several tasks: the jobs they come down to, what they record, and the page over them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lpc_ray.cli.jobs import run_job
from lpc_ray.config.suite import PromotionRule
from lpc_ray.errors import ConfigError
from lpc_ray.report.ledger.ledger import BaselineRecord, StepScore
from lpc_ray.report.results.read import read_results
from lpc_ray.run.arms import arms
from lpc_ray.run.baselines import prompt_baselines, untrained, untrained_name
from lpc_ray.run.plan import make_plan
from lpc_ray.storage import Store
from lpc_ray.suite.jobs import BASELINES, focus_job, load_many, patient_jobs, stratum_jobs
from lpc_ray.suite.promotion import promote
from lpc_ray.suite.suite import TaskResults, run_patients, run_suite
from tests.unit.test_analysis_report import arm, outcomes

SUITE = Path(__file__).parents[2] / "jobs" / "configs" / "pi_scale.strata.yaml"
PATIENTS = SUITE.with_name("longhealth.yaml")


def test_the_strata_config_comes_down_to_a_job_per_task():
    config = load_many(SUITE)
    focus = focus_job(config)
    assert focus.name == "strata.ledger-gap-fill"
    assert focus.recipe.source.paths == ("data/tasks/ledger-gap-fill",)
    assert focus.recipe.verification.settings["tune"] == ["ledger-gap-fill"]
    rule = PromotionRule(beats="ss", seeds=(0, 1), rest_seeds=(5,))
    decisions = promote({"ss": [0.2], "raw": [0.4]}, rule)
    jobs = stratum_jobs(config, ["tide-codec", "survey-units"], decisions, {"ss": 8, "raw": 16})
    assert [job.recipe.verification.settings["tune"] for job in jobs] == [["tide-codec"], ["survey-units"]]
    assert [(entry.induction, entry.seed) for entry in jobs[0].recipe.sweep] == [(("ss",), (5,)), (("raw",), (0, 1))]
    assert jobs[0].recipe.training.checkpoints() == [0, 8, 16, 24]
    assert jobs[0].recipe.stopping.grace_steps == jobs[0].recipe.training.steps == 24
    with pytest.raises(ConfigError, match="lets no family go on"):
        stratum_jobs(config, ["tide-codec"], promote({"ss": [0.2]}, PromotionRule(min_score=0.5)), {"ss": 0})


def test_the_longhealth_config_is_a_job_per_patient_with_first_k_and_three_seeds_of_sci():
    jobs = patient_jobs(load_many(PATIENTS))
    assert list(jobs) == ["patient_05", "patient_06", "patient_12", "patient_18"]
    job = jobs["patient_12"]
    assert job.recipe.source.paths[0].endswith("#patient_12")
    assert job.recipe.verification.settings["patients"] == ["patient_12"]
    found = [(arm.initializer, arm.initializer_seed, arm.num_tokens) for arm in arms(job.recipe, [])]
    assert found == [("first_k", 0, 2048), *(("sci", seed, 2048) for seed in range(3))]


def test_the_cpu_config_asks_the_same_of_one_record():
    whole, small = load_many(PATIENTS), load_many(PATIENTS.with_name("longhealth.cpu.yaml"))
    assert list(patient_jobs(small)) == ["patient_03"] and small.recipe["sweep"] == whole.recipe["sweep"]


def test_a_dry_run_over_several_tasks_says_what_exists_in_each_tasks_folder(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(SUITE.parents[2])
    arguments = ["--config", str(SUITE), "--dry-run", f"store.url={tmp_path}", "recipe.sweep.0.induction=ss"]
    run_job("x", None, arguments, work_many=lambda *given: pytest.fail("a dry run works"))
    shown = capsys.readouterr().out
    assert f"run          {tmp_path}/strata/ledger-gap-fill\n" in shown and "traces: some" not in shown
    plan = make_plan(focus_job(load_many(SUITE, arguments[3:])))
    Store(str(tmp_path)).write_bytes(f"strata/ledger-gap-fill/traces/{plan.arms[0].traces}/0.parquet", b"x")
    run_job("x", None, arguments, work_many=lambda *given: pytest.fail("a dry run works"))
    assert capsys.readouterr().out.count("new, traces: some") == 1


@pytest.mark.parametrize("config", [SUITE, PATIENTS])
def test_a_single_stage_refuses_a_config_of_several_tasks(config, capsys):
    with pytest.raises(SystemExit):
        run_job("x", lambda plan, run: pytest.fail("nothing is run"), ["--config", str(config)])
    assert "got several tasks, which only jobs/pi_scale.py runs, wanted a job of one" in capsys.readouterr().err


def test_a_config_of_one_job_names_no_tasks():
    assert load_many(SUITE.with_name("pi_scale.cpu.yaml")) is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("recipe.source={paths: [x]}", "unknown key recipe.source, wanted 'model', 'prompt'"),
        ("suite.focuss=x", "unknown key suite.focuss \\(did you mean 'focus'"),
        ("suite.promotion.by=median", "suite.promotion.by: got 'median'"),
        (
            "suite.promotion.beats=zz",
            "suite.promotion.beats: got 'zz', wanted one of ss, .*raw, no_context, full_document",
        ),
        ("suite.promotion.beats=bow", "beats: got 'bow', .* .did you mean 'bo'"),
        ("suite.promotion.seeds=[0, 0]", "suite.promotion.seeds: got 0 more than once, wanted each once$"),
        ("suite.promotion.rest_seeds=[1, 2, 1]", "suite.promotion.rest_seeds: got 1 more than once"),
        ("recipe.training.lrr=1", "task ledger-gap-fill: unknown key recipe.training.lrr \\(did you mean 'lr'"),
        ("recipe.source.paths=[x]", "recipe"),
    ],
)
def test_a_strata_config_that_cannot_be_carried_out_is_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        load_many(SUITE, [override])


def test_patients_are_named_once():
    with pytest.raises(ConfigError, match="patients.ids: got 'p' more than once, wanted each once$"):
        load_many(PATIENTS, ["patients.ids=[p, q, p]"])


@pytest.mark.parametrize("beats", [*BASELINES, "truncated-p128", "raw"])
def test_a_family_may_have_to_beat_any_family_or_baseline(beats):
    assert load_many(SUITE, [f"suite.promotion.beats={beats}"]).suite.promotion.beats == beats


def test_the_baselines_of_a_focused_task_are_those_that_may_be_named(monkeypatch):
    monkeypatch.chdir(SUITE.parents[2])
    plan = make_plan(focus_job(load_many(SUITE)))
    named = [name for name, _, _ in prompt_baselines(plan)] + [untrained_name(name) for name, _ in untrained(plan)]
    assert set(named) == set(BASELINES)


def test_the_suite_records_strata_and_decisions_and_scores_strata_at_the_focused_step(tmp_path):
    done = []

    def carry_out(job, run):
        """raw is best at step 16 of the focused task; on a stratum step 24 would be better, and is not taken."""
        done.append((job.name, str(run)))
        scores = {0: 0, 8: 2, 16: 9, 24: 9 if job.name.endswith("ledger-gap-fill") else 19}
        steps = tuple(
            StepScore(s, 1.0, p, 19, 1.0 * s, f"{s}")
            for s, p in scores.items()
            if s in job.recipe.training.checkpoints()
        )
        known = {"ss": tuple(replace(step, passed=step.passed // 3) for step in steps), "raw": steps}
        records = [
            arm(
                f"{induction}-s{seed}",
                induction=induction,
                seed=seed,
                steps=known[induction],
            )
            for entry in job.recipe.sweep
            for induction in entry.induction
            for seed in entry.seed
        ]
        tune = {
            f"{s}": tuple(replace(o, passed=p, total=19) for o in outcomes(1, int(p > 9))) for s, p in scores.items()
        }
        return TaskResults(150, records, [BaselineRecord("no_context", 0, 0, outcomes(1, 0), ())], tune.__getitem__)

    two = ["recipe.sweep.0.induction=ss", "suite.promotion.rest_seeds=[0]"]
    rows = run_suite(load_many(SUITE, two), Store(str(tmp_path)), carry_out)
    strata = json.loads((tmp_path / "strata.json").read_text())
    promotion = json.loads((tmp_path / "promotion.json").read_text())
    tasks = [pick["task"] for pick in strata["picks"]]
    assert len(set(tasks)) == 4 and "ledger-gap-fill" not in tasks
    assert [name for name, _ in done] == [f"strata.{task}" for task in ("ledger-gap-fill", *tasks)]
    decided = {
        decision["family"]: (decision["is_promoted"], decision["seeds"], decision["step"])
        for decision in promotion["decisions"]
    }
    assert decided == {"raw": (True, [0, 1, 2], 16), "ss": (False, [0], 16)}
    assert {(row.task, row.name) for row in rows} == {
        (task, name) for task in tasks for name in ("no_context", "raw-s0", "raw-s1", "raw-s2", "ss-s0")
    }
    assert {(row.best_step, row.passed, row.total) for row in rows if row.induction == "raw"} == {(16, 9, 19)}
    page = (tmp_path / "comparison.html").read_text()
    again = {part.run: part for part in read_results([tmp_path / "results.json"])}
    tried = again["strata, focused task"].rows
    assert {(row.name, row.best_step, row.passed) for row in tried if row.kind == "arm"} == {
        ("ss-s0", 16, 9), ("raw-s0", 16, 9),
    }  # fmt: skip
    assert list(again["strata"].rows) == rows
    assert "small, skill of" in page and "promoted, with seeds 0, 1, 2: it meets every bound" in page


def test_the_patients_run_gives_a_verdict_per_record_by_best_and_by_mean(tmp_path):
    """patient_05: first-k 6, SCI 7, 3 and 2 of 10: SCI wins by its best seed, first-k by the mean. Others tie."""

    def carry_out(job, run):
        scores = {"first_k": [6], "sci": [7, 3, 2]} if job.name.endswith("05") else {"first_k": [4], "sci": [4, 4, 4]}
        records = [
            arm(
                f"{name}-i{seed}",
                initializer=name,
                initializer_seed=seed,
                num_tokens=2048,
                held_out=outcomes(10, passed),
            )
            for name, seed_scores in scores.items()
            for seed, passed in enumerate(seed_scores)
        ]
        counted = tuple(replace(outcome, prompt_tokens=9_700) for outcome in outcomes(10, 5))
        whole = BaselineRecord("full_document", 0, 0, (), counted if job.name.endswith("06") else ())
        return TaskResults(
            9603, records, [BaselineRecord("no_context", 0, 0, (), outcomes(10, 2)), whole], lambda _: ()
        )

    rows = run_patients(load_many(PATIENTS), Store(str(tmp_path)), carry_out)
    assert {row.source_tokens for row in rows if row.task != "patient_06"} == {9603}
    assert {row.source_tokens for row in rows if row.task == "patient_06"} == {9_700 - 40}
    (run,) = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert run["facts"]["no row with the whole record"].startswith(
        "patient_05, patient_12, patient_18: the engine's context"
    )
    decided = {line["task"]: (line["by_best"], line["by_mean"], line["mean_delta"]) for line in run["documents"]}
    assert decided["patient_05"] == ("second", "first", -2.0)
    assert {task: decided[task] for task in decided if task != "patient_05"} == {
        task: ("tie", "tie", 0.0) for task in ("patient_06", "patient_12", "patient_18")
    }
