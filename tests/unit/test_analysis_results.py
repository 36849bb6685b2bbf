"""Result files of earlier and foreign runs: read, normalised, merged and compared, or refused with one clear error."""

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_ray.errors import DataError
from lpc_ray.report.comparison import COMPARISON_FILES, merged, sections_of, shared_arms, write_comparison
from lpc_ray.report.files import json_bytes
from lpc_ray.report.results.read import parse_results, read_results
from lpc_ray.report.significance import wilson
from tests.unit.test_analysis_report import BASELINES, FACTS, Folder, Reader, arm, outcomes

ROOT = Path(__file__).parents[2]


def row(**entry):
    (found,) = parse_results([{"arm": "a", **entry}], "foreign.json")
    return found.rows[0]


def saved(folder: Path, name: str, content) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_foreign_names_become_the_ledgers():
    found = row(
        family="bo",
        dataset="xlsx",
        correct=17,
        num_tests=19,
        accuracy=0.8947,
        input_tokens=4000,
        completion_tokens=72,
        virtual_tokens=1744,
        artifact_bytes=1000,
        trace_seconds=5,
        teacher_seconds=2,
        train_seconds=3.5,
        reuse_count=100,
    )
    assert (found.name, found.induction, found.task, found.passed, found.total) == ("a", "bo", "xlsx", 17, 19)
    assert (found.score, found.score_low, found.score_high) == (17 / 19, *wilson(17, 19))
    assert (found.request_tokens, found.prefix_tokens, found.prefix_bytes) == (4072, 1744, 1000)
    assert (found.offline_seconds, found.expected_requests, found.placeholders_counted) == (10.5, 100, "unknown")


def test_what_a_file_does_not_say_is_missing_and_not_zero():
    found = row(result="3 / 4")
    assert (found.request_tokens, found.prefix_bytes, found.offline_seconds, found.observed_requests) == (None,) * 4
    assert row(result="3 / 4", train_seconds=5).offline_seconds is None


def test_a_row_without_a_prefix_has_no_prefix_bytes():
    found = row(result="3 / 4", prefix_tokens=0)
    assert (found.kind, found.prefix_bytes, found.prefix_tokens) == ("baseline", 0, 0)


@pytest.mark.parametrize("verdict", ["invalid", "verifier_error", "empty", "harness_confounded"])
def test_a_verdict_that_is_no_score_never_becomes_zero(verdict):
    for entry in ({"result": f"0 / 1 {verdict}"}, {"status": verdict, "passed": 0, "total": 1}, {"status": verdict}):
        found = row(**entry)
        assert (found.passed, found.total, found.score) == (None, None, None)
        assert (found.status, found.uncounted_verdicts) == (verdict, {verdict: 1})


@pytest.mark.parametrize(
    "entry",
    [
        {"status": "INVALID", "passed": 0, "total": 10},
        {"verdict": "invalid", "passed": 0, "total": 10},
        {"status": "finished", "verdict": "Invalid", "passed": 0, "total": 10},
        {"status": "Unknown", "verdict": "invalid", "passed": 0, "total": 10},
        {"result": "0 / 10 Invalid"},
    ],
)
def test_a_verdict_is_read_in_any_case_and_under_either_name(entry):
    found = row(**entry)
    assert (found.passed, found.total, found.score, found.status) == (None, None, None, "invalid")
    assert found.uncounted_verdicts == {"invalid": 1}
    assert row(verdict="pass", passed=3, total=4).score == 0.75
    assert row(result="0 / 1 harness-confounded").status == "harness_confounded"


def test_uncounted_verdicts_stand_beside_the_count_on_the_page():
    entries = [
        {"arm": "a", "passed": 4, "total": 10, "uncounted_verdicts": {"INVALID": 2, "invalid": 1}},
        {"arm": "b", "passed": 7, "total": 7, "uncounted_verdicts": {"verifier_error": 1}},
        {"arm": "c", "status": "invalid", "uncounted_verdicts": {"invalid": 2, "empty": 1}},
    ]
    assert row(**entries[0]).uncounted_verdicts == {"invalid": 3}
    words = compared(entries)
    for wanted in (
        "4/10 , 3 cases not scored (invalid)",
        "7/7 , 1 case not scored (verifier_error)",
        "3 cases not scored (2 invalid, 1 empty)",
    ):
        assert wanted in words


def compared(*contents) -> str:
    """The words of the page that compares files of these contents."""
    folder = Folder()
    runs = [found for number, content in enumerate(contents) for found in parse_results(content, f"f{number}.json")]
    write_comparison(folder, "Compared", runs)
    return " ".join(" ".join(Reader(folder["comparison.html"].decode()).words).split())


def test_the_page_tells_kl_drift_and_gate_of_a_run_that_has_them():
    entry = {"arm": "a", "result": "3 / 4", "kl_drift": 0.5, "accuracy_change": -0.5, "accuracy_bare": 0.75}
    words = compared([entry | {"gate": "got kl_drift 0.5, wanted at most 0.1"}])
    assert "0.5000 -50.0 points 75.0 % – – refused: got kl_drift 0.5, wanted at most 0.1" in words
    assert "Off the source" not in compared([{"arm": "a", "result": "3 / 4"}])


def test_a_table_of_equals_names_no_leader():
    words = compared([{"arm": name, "result": "0 / 16"} for name in "abc"])
    assert "all 3 are equal: 0.0 %" in words and "a 0/16 none" not in words
    assert "a 1/16" in compared([{"arm": "a", "result": "1 / 16"}, {"arm": "b", "result": "0 / 16"}])


@pytest.mark.parametrize(("costs", "is_ranked"), [({}, False), ({"request_tokens": 10}, True)])
def test_where_nothing_is_ranked_no_file_tells_a_place(costs, is_ranked):
    cells = {"a": "1 / 4", "b": "3 / 4"}
    entries = [{"arm": arm, "task": task, "result": cell, **costs} for task in "tu" for arm, cell in cells.items()]
    folder = Folder()
    write_comparison(folder, "Compared", parse_results(entries, "f.json"))
    assert ("nothing is ranked" in folder["comparison.html"].decode()) is not is_ranked
    content = json.loads(folder["results.json"])
    places = [(line["is_on_frontier"], line["dominated_by"]) for line in content["rows"]]
    assert places == [(False, "b"), (True, "")] * 2 if is_ranked else places == [(None, None)] * 4
    by_arm = [line["dominated_by"] for line in content["runs"][0]["by_arm"]]
    assert by_arm == (["b", ""] if is_ranked else [None, None])
    for name, lines in (("arms.csv", 2), ("results.csv", 4)):
        table = list(csv.DictReader(io.StringIO(folder[name].decode())))
        assert [line["dominated_by"] for line in table] == (["b", ""] * (lines // 2) if is_ranked else [""] * lines)
    assert [line["is_on_frontier"] for line in table] == (["False", "True"] * 2 if is_ranked else [""] * 4)


def test_the_note_under_a_table_says_where_denominators_differ():
    def words(*totals, **other):
        entries = [{"arm": f"a{at}", "task": "t", "passed": 1, "total": total} for at, total in enumerate(totals)]
        return compared(
            [*entries, {"arm": "o", "task": "u", "passed": 1, "total": 7}, {"arm": "x", "task": "t", **other}]
        )

    assert "Denominators differ (9 and 10 checks), so these rows are not on the same checks." in words(10, 9, 10)
    assert "Denominators differ" not in words(10, 10)
    assert "Denominators differ" not in words(10, 10, status="invalid")
    assert "Denominators differ" not in words(10, 10, status="unknown", passed=0, total=1)


def test_the_note_on_step_0_is_a_sentence_of_its_own():
    entry = {"arm": "a", "result": "1 / 4", "step": 0, "request_tokens": 5, "placeholders_counted": "no"}
    assert "counted here: no. At step 0 nothing has been trained" in compared([entry])
    assert "so nothing is ranked. At step 0 nothing" in compared([{"arm": "a", "result": "1 / 4", "step": 0}])


def test_names_cannot_turn_the_page_round_or_lose_a_legend_entry():
    names = ["x\u202egnp", "_hidden", "n" * 300 + "1", "n" * 300 + "2"]
    entries = [{"arm": name, "result": "1 / 4", "request_tokens": 10 + at} for at, name in enumerate(names)]
    folder = Folder()
    write_comparison(folder, "Compared", parse_results(entries, "f.json"))
    html = folder["comparison.html"].decode()
    assert "\u202e" not in html and "x\\u202egnp" in html
    (drawn,) = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert drawn.count("prefix tokens)") == 4 and "_hidden" in drawn and "n" * 61 not in drawn


def test_figures_far_apart_can_be_drawn():
    compared([{"arm": name, "result": "1 / 4", "request_tokens": at} for name, at in (("a", 1e-9), ("b", 1e15))])


def test_a_bare_share_has_a_score_and_no_interval():
    found = row(pass_rate=0.75)
    assert (found.score, found.total, found.score_low) == (0.75, None, None)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"result": "17"}, "got the result '17', wanted `passed / total`"),
        ({"result": "3 / 4 perhaps"}, "labelled where it is no score"),
        ({"result": "5 / 4"}, "got 5 of 4, wanted 0 <= passed <= total"),
        ({"passed": 0, "total": 0}, "got 0 of 0"),
        ({"accuracy": 75}, "got a score of 75, wanted a fraction of 1"),
        ({"accuracy": 0.5, "result": "3 / 4"}, "got a score of 0.5 beside 3 of 4"),
        ({"result": "3 / 4", "request_tokens": "many"}, "got request_tokens = 'many', wanted a number"),
        ({"result": "3 / 4", "prefix_bytes": -1}, "got prefix_bytes = -1, wanted a whole number"),
        ({"result": "3 / 4", "training_seconds": float("nan")}, "wanted a number"),
        ({"result": "3 / 4", "placeholders_counted": "maybe"}, "wanted one of yes, no, unknown"),
        ({"result": "3 / 4", "prefix_tokens": 4, "virtual_tokens": 5}, "with different values, wanted one num_tokens"),
        ({"result": "3 / 4", "prefix_bytes": 10**400}, "wanted a whole number from 0 to 1e15"),
        ({"result": "3 / 4", "request_tokens": 1e308}, "at most 1e15"),
        ({"result": "3 / 4", "request_tokens": 1e-308}, "above 0, at least 1e-9"),
        ({"result": f"1 / {10**400}"}, "wanted `passed / total`"),
        ({"result": f"1 / {10**12}"}, "wanted at most 1,000,000,000 checks"),
        ({"result": "3 / 4", "figures": {"reward": float("nan")}}, "wanted a mapping of finite numbers"),
        ({"result": "3 / 4", "uncounted_verdicts": {"invalid": "3"}}, "wanted a mapping of counts"),
        ({"result": "3 / 4", "cases": {"a": 1}}, "wanted a mapping of true and false"),
        ({"result": "3 / 4", "cases": {"a": True, "b": False}}, "got cases of which 1 of 2 passed beside 3 of 4"),
        ({"status": "empty", "verdict": "invalid"}, "got status 'empty' and verdict 'invalid', wanted one"),
        ({"arm": ""}, "got no name"),
        ({"run": ["r"], "result": "3 / 4"}, "got run = ['r'], wanted text"),
    ],
)
def test_an_impossible_entry_is_refused_with_its_place(entry, message):
    with pytest.raises(DataError, match=r"foreign\.json, result 1: .*") as raised:
        row(**entry)
    assert message in str(raised.value)


@pytest.mark.parametrize("content", [{}, {"scores": []}, 5, "x", [1]])
def test_a_file_without_results_is_refused(content):
    with pytest.raises(DataError, match=r"foreign\.json.*: got"):
        parse_results(content, "foreign.json")


def test_a_file_given_twice_is_refused(tmp_path):
    (tmp_path / "one.json").write_text('[{"name": "a", "passed": 1, "total": 2}]')
    assert [len(run.rows) for run in read_results([tmp_path / "one.json"])] == [1]
    with pytest.raises(DataError, match=r"one\.json: got this file more than once"):
        read_results([tmp_path / "one.json", tmp_path / "." / "one.json"])


def test_a_missing_or_broken_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read_results([tmp_path / "none.json"])
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        read_results([tmp_path / "broken.json"])


def test_keys_that_no_field_takes_are_named():
    (found,) = parse_results([{"arm": "a", "result": "3 / 4", "gpu": "H100", "host": 1}], "foreign.json")
    assert found.ignored == ("gpu", "host")


def test_files_of_one_run_are_merged_and_files_of_two_are_not(tmp_path):
    one = saved(tmp_path, "one.json", {"run": "r", "results": [{"arm": "a", "task": "t", "result": "3 / 4"}]})
    two = saved(tmp_path, "two.json", {"run": "r", "results": [{"arm": "b", "task": "t", "result": "2 / 4"}]})
    other = saved(tmp_path, "other.json", [{"arm": "a", "task": "t", "result": "1 / 4"}])
    found = read_results([one, two, other])
    assert [(part.run, [at.name for at in part.rows]) for part in found] == [("r", ["a", "b"]), ("other", ["a"])]
    again = saved(tmp_path, "again.json", {"run": "r", "results": [{"arm": "a", "task": "t", "result": "4 / 4"}]})
    with pytest.raises(DataError, match="run r: got passed 3 and 4 for a on t, wanted one"):
        read_results([one, again])


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([(8, 3, 2)], "convergence of 'a', step 8: got 3 of 2, wanted passed <= total"),
        ([(8, 1, 2), (8, 2, 2)], "got 1/2 and 2/2 for 'a' at step 8, wanted one"),
        ([(8, float("inf"), 2)], "convergence.0.passed: got inf"),
        ([(8, 1, 10**400)], "convergence.0.total: got 1000"),
    ],
)
def test_a_measured_curve_that_cannot_be_is_refused(points, message):
    points_of_arm = [dict(zip(("arm", "step", "passed", "total"), ("a", *point), strict=True)) for point in points]
    with pytest.raises(DataError) as raised:
        parse_results({"convergence": points_of_arm}, "foreign.json")
    assert message in str(raised.value) and len(str(raised.value)) < 300


def timed(folder: Path, name: str, seconds: int) -> Path:
    """A report of run `r` whose one arm took so long."""
    point = {"arm": "a", "step": seconds, "passed": 1, "total": 4}
    entry = {"arm": "a", "result": "1 / 4", "training_seconds": seconds}
    return saved(folder, f"{name}/report.json", {"run": "r", "title": "R", "results": [entry], "convergence": [point]})


def test_two_runs_of_one_config_are_told_apart_by_a_name(tmp_path):
    one, two = timed(tmp_path, "one", 5), timed(tmp_path, "two", 6)
    with pytest.raises(DataError, match=r"run r: got training_seconds 5 and 6 .* wanted one \(.*NAME=path gives"):
        read_results([one, two])
    first, second = read_results([f"first={one}", two])
    assert [(found.run, found.title, found.rows[0].run) for found in (first, second)] == [
        ("first", "first: R", "first"),
        ("r", "R", "r"),
    ]
    assert [first.curves[0].points, second.curves[0].points] == [((5, 1, 4),), ((6, 1, 4),)]
    again = saved(tmp_path, "x=y.json", [{"arm": "a", "result": "1 / 4"}])
    assert read_results([again])[0].run == "x=y"


@pytest.mark.parametrize(("given", "message"), [("={}", "got no name"), ("a=", "got no path"), ("a={}", "for 2 runs")])
def test_a_name_that_names_no_one_run_is_refused(given, message, tmp_path):
    path = saved(tmp_path, "f.json", [{"run": run, "arm": "a", "result": "1 / 4"} for run in "xy"])
    with pytest.raises(DataError, match=message):
        read_results([given.format(path)])


def test_curves_of_one_run_in_two_files_are_one_or_must_agree(tmp_path):
    def file(name, *points):
        convergence = [{"arm": "a", "step": step, "passed": passed, "total": 4} for step, passed in points]
        return saved(tmp_path, name, {"run": "r", "convergence": convergence})

    one, two, other = file("1.json", (0, 0), (4, 1)), file("2.json", (4, 1), (8, 2)), file("3.json", (4, 2))
    assert [curve.points for curve in read_results([one, two])[0].curves] == [((0, 0, 4), (4, 1, 4), (8, 2, 4))]
    with pytest.raises(DataError, match="run r: got 1/4 and 2/4 for 'a' at step 4"):
        read_results([one, other])


def result_file_of(folder: Path, name: str, facts: dict, *tasks: str | None) -> Path:
    """A file of run `r` with a row per task, or a curve where there is none."""
    rows = [{"arm": name, "task": task, "result": "1 / 4"} for task in tasks]
    curve = [{"arm": name, "step": 1, "passed": 1, "total": 4}]
    content = {"run": "r", "facts": facts, "results": rows, "convergence": [] if tasks else curve}
    return saved(folder, f"{name}.json", content)


@pytest.mark.parametrize(
    ("one", "other"), [(["t"], ["t"]), (["t", "u"], ["u"]), ([None], [None]), (["t"], []), ([], [])]
)
def test_files_of_one_run_and_task_must_agree_in_their_facts(one, other, tmp_path):
    first = result_file_of(tmp_path, "a", {"model": "m", "made": "noon", "dtype": "bf16"}, *one)
    second = result_file_of(tmp_path, "b", {"model": "n", "made": "dusk"}, *other)
    with pytest.raises(DataError, match=r"run r: got the fact 'model' as 'm' and 'n', wanted one \(.*NAME=path gives"):
        read_results([first, second])
    assert [found.facts["model"] for found in read_results([first, f"s={second}"])] == ["m", "n"]
    second = result_file_of(tmp_path, "b", {"model": "m", "made": "dusk", "cases": 3}, *other)
    (found,) = read_results([first, second])
    assert found.facts == {"model": "m", "made": "dusk", "dtype": "bf16", "cases": 3}


def test_files_of_a_runs_tasks_may_differ_in_facts_which_are_told_by_task(tmp_path):
    facts = {"t": {"model": "m", "document": "A"}, "u": {"model": "m", "document": "B"}, "v": {"cases": 3}}
    runs = read_results([result_file_of(tmp_path, task, fact, task) for task, fact in facts.items()])
    assert [found.facts for found in runs] == [{"model": "m", "document": {"t": "A", "u": "B"}, "cases": 3}]
    assert reread(runs) == runs


def test_two_files_complete_each_others_rows(tmp_path):
    one = saved(tmp_path, "one.json", {"run": "r", "results": [{"arm": "a", "result": "3 / 4"}]})
    two = saved(tmp_path, "two.json", {"run": "r", "results": [{"arm": "a", "training_seconds": 7, "result": "3 / 4"}]})
    (found,) = read_results([one, two])
    assert [(at.passed, at.training_seconds) for at in found.rows] == [(3, 7)]


def test_entries_that_name_their_own_runs_are_kept_apart():
    entries = [{"run": name, "arm": "a", "result": cell} for name, cell in (("x", "1 / 4"), ("y", "4 / 4"))]
    assert [(part.run, part.rows[0].passed) for part in parse_results(entries, "f.json")] == [("x", 1), ("y", 4)]


def test_a_report_of_our_own_is_read_back_with_its_curves():
    from lpc_ray.report.report import ReportScope, write_report

    folder = Folder()
    held = outcomes(60, 41)
    written = write_report(folder, "Harbour", FACTS, [arm(held_out=held)], BASELINES, scope=ReportScope("r", "doc"))
    (found,) = parse_results(json.loads(folder["report.json"]), "runs/harbour/report.json")
    assert found.run == "r"
    assert found.ignored == ()
    assert list(found.rows) == written
    assert [curve.points for curve in found.curves] == [((0, 0, 24), (1, 2, 24), (8, 9, 24), (48, 17, 24))]


UNCOUNTED = [{"result": "0 / 1 invalid"}, {"status": "empty"}, {"score": 0.25}, {}]
CELLS = st.one_of(
    st.tuples(st.integers(0, 20), st.just(20)).map(lambda pair: {"passed": pair[0], "total": pair[1]}),
    st.sampled_from([{"result": "1 / 2", "cases": {"a": True, "b": False}}, *UNCOUNTED]),
)
ENTRIES = st.fixed_dictionaries(
    {"task": st.sampled_from(["t", "u"]), "run": st.sampled_from(["r", "s"])},
    optional={
        "request_tokens": st.floats(1e-9, 1e6),
        "num_tokens": st.integers(0, 9),
        "training_seconds": st.floats(1e-9, 1e6) | st.just(0),
    },
)


@given(st.lists(st.tuples(CELLS, ENTRIES), min_size=1, max_size=8))
def test_a_merged_file_read_again_says_the_same(drawn):
    entries = [{"arm": f"arm-{number}", **cell, **entry} for number, (cell, entry) in enumerate(drawn)]
    runs = parse_results(entries, "f.json")
    again = parse_results(json.loads(json_bytes(merged(sections_of(runs)))), "results.json")
    assert again == runs


def reread(runs):
    """The runs of the results.json that compares `runs`."""
    folder = Folder()
    write_comparison(folder, "Compared", runs)
    return parse_results(json.loads(folder["results.json"], parse_constant=pytest.fail), "out/results.json")


def test_the_published_runs_written_and_read_again_say_the_same():
    runs = read_results(sorted((ROOT / "data" / "published").glob("*.json")))
    again = reread(runs)
    assert again == runs and len(again) == 8
    (convergence,) = (found for found in again if found.run == "a100-convergence")
    assert (len(convergence.curves), convergence.facts["hardware"], convergence.rows) == (9, "A100", ())
    assert convergence.curves[0].reached[Fraction(12, 19)] == 8


def test_measured_curves_written_and_read_again_say_the_same(tmp_path):
    from lpc_ray.report.report import ReportScope, write_report
    from lpc_ray.report.statistics.steps_to_quality import curves

    arms = [arm(held_out=outcomes(60, 41)), arm("new", steps=(), held_out=(), status="unfinished", num_tokens=64)]
    folder = Folder()
    write_report(folder, "Harbour", FACTS, arms, BASELINES, scope=ReportScope("r", "doc"))
    (report,) = parse_results(json.loads(folder["report.json"]), "report.json")
    whole = replace(report, curves=tuple(curves(arms)), ignored=("gpu",))
    assert [(curve.ended, len(curve.points)) for curve in whole.curves] == [
        ("finished at step 48", 4),
        ("unfinished", 0),
    ]
    stated = {
        "run": "s",
        "title": "S",
        "curves": [{"rows": [CURVE]}],
        "convergence": [dict(arm="b", step=1, passed=0, total=0)],
    }
    assert reread([whole, *parse_results(stated, "s.json")]) == [whole, *parse_results(stated, "s.json")]
    path = saved(tmp_path, "results.json", merged(sections_of([report])) | {"runs": [{"run": "r", "title": "R"}]})
    assert [(found.title, found.curves) for found in read_results([path])] == [("R", ())]


SHARES = st.tuples(st.integers(0, 19), st.integers(19, 40)).map(lambda pair: f"{pair[0]} / {pair[1]}")
CHECKPOINTS = st.dictionaries(st.integers(0, 50), st.integers(0, 9), max_size=5)


@given(st.dictionaries(st.sampled_from("abc"), SHARES), st.dictionaries(st.sampled_from("cde"), CHECKPOINTS), st.text())
def test_curves_of_any_run_written_and_read_again_are_the_same(bests, measured, title):
    rows = [{"arm": name, "reached": {best: 3}, "best": best} for name, best in bests.items()]
    points = [
        {"arm": name, "step": step, "passed": passed, "total": 9}
        for name, at in measured.items()
        for step, passed in at.items()
    ]
    content = {"title": title, "facts": {"note": title}, "curves": [{"rows": rows}], "convergence": points}
    runs = parse_results(content, "f.json")
    again = parse_results(json.loads(json_bytes(merged(sections_of(runs)))), "results.json")
    assert again == runs and len(again) == 1


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (3, "runs: got 3"),
        ([{"title": "R"}], "runs.0.run: got"),
        ([{"run": "r"}, {"run": "r"}], "runs: got one run more than once, wanted each once"),
        (
            [{"run": "r", "curves": [{"rows": [{"arm": "a", "reached": {}, "best": "2"}]}]}],
            "run r: got '2', wanted `passed",
        ),
    ],
)
def test_stated_runs_that_cannot_be_are_refused_with_the_files_name(runs, message):
    with pytest.raises(DataError) as raised:
        parse_results({"rows": [], "runs": runs}, "foreign.json")
    assert str(raised.value).startswith("foreign.json, ") and message in str(raised.value)


def test_the_page_that_compares_runs_opens_offline_and_names_every_row():
    files = sorted((ROOT / "data" / "published").glob("*.json"))
    folder = Folder()
    write_comparison(folder, "Runs <compared>", read_results(files), ("12/19", 0.5))
    assert set(folder) == set(COMPARISON_FILES)
    html = folder["comparison.html"].decode()
    page = Reader(html)
    assert "//" not in html
    assert not {"link", "script", "img", "iframe"} & set(page.tags)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    words = " ".join(" ".join(page.words).split())
    for wanted in ("Runs <compared>", "0/1 unknown", "invalid", "AR-TA, strided-RoPE step 4", "first_k wins", "tie"):
        assert wanted in words
    merged = json.loads(folder["results.json"], parse_constant=pytest.fail)
    assert all(entry["name"] in words for entry in merged["rows"])
    table = list(csv.DictReader(io.StringIO(folder["results.csv"].decode())))
    assert len(table) == len(merged["rows"]) == 77
    arms = {(line["run"], line["arm"]): line for line in csv.DictReader(io.StringIO(folder["arms.csv"].decode()))}
    whole, part = arms[("h100-pi-pilot", "R-PI KL")], arms[("cartridge-skillsbench", "Full skill")]
    assert (whole["tasks"], whole["passed"], whole["total"], whole["score"]) == (
        "4 of 4 tasks",
        "31",
        "65",
        str(31 / 65),
    )
    assert (part["tasks"], part["passed"], part["total"], part["score"]) == ("3 of 4 tasks", "10", "46", "")
    assert {line["run"] for line in table} == {part["run"] for part in merged["runs"]} - {"a100-convergence"}


def test_only_what_several_runs_measured_stands_side_by_side():
    runs = read_results(sorted((ROOT / "data" / "published").glob("*.json")))
    found = {
        (at.task, at.name): [r.run for r in at.rows] for at in shared_arms([r for part in runs for r in part.rows])
    }
    assert found[("xlsx-recover-data", "No skill")] == ["a100-retest", "cartridge-skillsbench", "h100-pi-stabilization"]
    assert all(len(runs) == len(set(runs)) > 1 for runs in found.values())


def test_the_report_job_compares_result_files_without_a_config(tmp_path):
    files = sorted(map(str, (ROOT / "data" / "published").glob("h100-*.json")))
    job = [sys.executable, str(ROOT / "jobs" / "report.py"), "--out", str(tmp_path), "--results"]
    job += [*files, "--thresholds", "50%", "12/19", "0.5"]
    done = subprocess.run(job, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/comparison.html\n"), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(COMPARISON_FILES)


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 30), st.floats(), st.sampled_from(["", "a", "3 / 4", "0 / 1 invalid"])
)
CURVE = {"arm": "a", "reached": {"12 / 19": 4, "15 / 19": None}, "best": "13 / 19"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"best": "11 / 19"}, "curve a: got step 4 for 12/19, which its best, 11/19, denies"),
        ({"best": "20 / 19"}, "got '20 / 19', wanted `passed / total`, at most all of them"),
        ({"best": "13 / 0"}, "got '13 / 0', wanted `passed / total`"),
        ({"reached": {"12 / 19": 4, "11 / 19": 8}}, "a higher score at an earlier step"),
        ({"reached": {"12 / 19": -1}}, "reached.12 / 19: got -1"),
        ({"best": None}, "curves.0.rows.0.best: got None"),
    ],
)
def test_a_curve_that_cannot_be_is_refused_with_the_files_name(change, message):
    with pytest.raises(DataError) as raised:
        parse_results({"curves": [{"rows": [CURVE | change]}]}, "foreign.json")
    assert str(raised.value).startswith("foreign.json") and message in str(raised.value)


KEYS = st.sampled_from(
    ["arm", "result", "rows", "tables", "curves", "reached", "best", "arms", "results", "convergence", "step", "passed"]
    + [
        "total",
        "score",
        "run",
        "task",
        "status",
        "name",
        "kind",
        "facts",
        "runs",
        "denominators",
        "placeholders_counted",
        "title",
    ]
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=20,
)


@settings(deadline=None, max_examples=300)
@given(JSON)
def test_any_json_is_read_or_refused_with_the_files_name(content):
    try:
        runs = parse_results(content, "foreign.json")
    except DataError as error:
        assert "foreign.json" in str(error)
    else:
        write_comparison(Folder(), "Any", runs) if runs else None
