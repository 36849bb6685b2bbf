"""Result files of earlier and foreign runs: read, normalised, merged and compared, or refused with one clear error."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_ray.analysis.compare import COMPARISON_FILES, shared_arms, write_comparison
from lpc_ray.analysis.results import parse_results, read_results
from lpc_ray.analysis.significance import wilson
from lpc_ray.errors import DataError
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


def test_two_files_complete_each_others_rows(tmp_path):
    one = saved(tmp_path, "one.json", {"run": "r", "results": [{"arm": "a", "result": "3 / 4"}]})
    two = saved(tmp_path, "two.json", {"run": "r", "results": [{"arm": "a", "training_seconds": 7, "result": "3 / 4"}]})
    (found,) = read_results([one, two])
    assert [(at.passed, at.training_seconds) for at in found.rows] == [(3, 7)]


def test_entries_that_name_their_own_runs_are_kept_apart():
    entries = [{"run": name, "arm": "a", "result": cell} for name, cell in (("x", "1 / 4"), ("y", "4 / 4"))]
    assert [(part.run, part.rows[0].passed) for part in parse_results(entries, "f.json")] == [("x", 1), ("y", 4)]


def test_a_report_of_our_own_is_read_back_with_its_curves():
    from lpc_ray.analysis.report import ReportSubject, write_report

    folder = Folder()
    held = outcomes(60, 41)
    written = write_report(folder, "Harbour", FACTS, [arm(held_out=held)], BASELINES, subject=ReportSubject("r", "doc"))
    (found,) = parse_results(json.loads(folder["report.json"]), "runs/harbour/report.json")
    assert found.run == "r"
    assert found.ignored == ()
    assert list(found.rows) == written
    assert [curve.points for curve in found.curves] == [((0, 0, 24), (1, 2, 24), (8, 9, 24), (48, 17, 24))]


CELLS = st.one_of(
    st.tuples(st.integers(0, 20), st.just(20)).map(lambda pair: {"passed": pair[0], "total": pair[1]}),
    st.sampled_from([{"result": "0 / 1 invalid"}, {"status": "empty"}, {"score": 0.25}, {}]),
)
ENTRIES = st.fixed_dictionaries(
    {"task": st.sampled_from(["t", "u"]), "run": st.sampled_from(["r", "s"])},
    optional={
        "request_tokens": st.floats(1e-9, 1e6),
        "num_tokens": st.integers(0, 9),
        "training_seconds": st.floats(1e-9, 1e6) | st.just(0),
    },
)


@settings(deadline=None, max_examples=12)
@given(st.lists(st.tuples(CELLS, ENTRIES), min_size=1, max_size=8))
def test_a_merged_file_read_again_says_the_same(drawn):
    entries = [{"arm": f"arm-{number}", **cell, **entry} for number, (cell, entry) in enumerate(drawn)]
    runs = parse_results(entries, "f.json")
    folder = Folder()
    write_comparison(folder, "Again", runs)
    again = parse_results(json.loads(folder["results.json"]), "results.json")
    assert [list(part.rows) for part in again] == [list(part.rows) for part in runs]


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
    done = subprocess.run([*job, *files], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
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
