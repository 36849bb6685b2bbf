"""Loaders against the data sets themselves, and what they refuse."""

import json
from pathlib import Path

import pytest

from lpc_ray.datasets import longhealth, skillsbench
from lpc_ray.errors import DataError
from lpc_ray.sources import read_documents

TASKS = Path(__file__).resolve().parents[2] / "data" / "tasks"


def _patient(**changes) -> dict:
    question = {"No": 0, "question": "Q?", "correct": "two"}
    texts = ["one", "two", "three", "four", "five"]
    options = {f"answer_{letter}": text for letter, text in zip("abcde", texts, strict=True)}
    return {
        "name": "N",
        "texts": {"text_10": "c", "text_2": "b", "text_0": "a"},
        "questions": [question | options | changes],
    }


def test_longhealths_upstream_layout_gives_records_with_notes_in_order(tmp_path):
    path = tmp_path / "benchmark.json"
    path.write_text(json.dumps({"patient_01": _patient(), "patient_02": _patient()}))
    assert list(longhealth.read_patients(path)) == ["patient_01", "patient_02"]
    assert read_documents([f"{path}#patient_02"])[0].text == "a\n\nb\n\nc"
    with pytest.raises(DataError, match="got 'patient_3' after #"):
        read_documents([f"{path}#patient_3"])


@pytest.mark.parametrize("correct", ["six", ""])
def test_a_longhealth_answer_that_is_no_option_is_refused(tmp_path, correct):
    path = tmp_path / "benchmark.json"
    path.write_text(json.dumps({"patient_01": _patient(correct=correct)}))
    with pytest.raises(DataError, match="patient_01 question 0: got the correct text"):
        longhealth.read_patients(path)


def test_both_layouts_are_read():
    tasks = skillsbench.read_tasks(TASKS)
    old, new = tasks["ledger-gap-fill"], tasks["roster-merge"]
    assert old.tests.name == "tests" and old.solution.name == "solution"
    assert new.tests.name == "verifier" and new.solution.name == "oracle"
    assert new.instruction.startswith("Merge the watch rosters") and new.timeout_seconds == 120
    assert new.skills.startswith("### Skill: rosters\n\n---\nname: rosters")


def test_inputs_go_where_the_dockerfile_copies_them_and_skills_go_nowhere():
    workdir, places = skillsbench.placements(skillsbench.read_task(TASKS / "roster-merge"))
    assert workdir == "/root"
    assert [where for _, where in places] == ["/root/rosters/april.xlsx", "/root/rosters/may.xlsx"]
    _, places = skillsbench.placements(skillsbench.read_task(TASKS / "minutes-actions"))
    assert [where for _, where in places] == ["/root/minutes"]


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("COPY data /srv/data", ["/srv/data/a.csv"]),
        ("WORKDIR /app\nCOPY b.txt .", ["/app/b.txt"]),
        ("COPY b.txt /app/c.txt", ["/app/c.txt"]),
        ("COPY --chown=1 b.txt \\\n  data/a.csv /app/", ["/app/b.txt", "/app/a.csv"]),
        ("COPY . /app", ["/app/b.txt", "/app/data"]),
        ("COPY --from=build /x /y\nRUN cp b.txt /y", []),
    ],
)
def test_copy_lines_are_understood(tmp_path, lines, wanted):
    (tmp_path / "instruction.md").write_text("Do.")
    (tmp_path / "environment" / "data").mkdir(parents=True)
    (tmp_path / "environment" / "skills").mkdir()
    (tmp_path / "environment" / "data" / "a.csv").write_text("a")
    (tmp_path / "environment" / "b.txt").write_text("b")
    (tmp_path / "environment" / "Dockerfile").write_text(f"FROM x\n{lines}\n")
    assert [where for _, where in skillsbench.placements(skillsbench.read_task(tmp_path))[1]] == wanted


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"instruction.md": " "}, "empty instruction"),
        ({"instruction.md": "Do.", "task.toml": "a = "}, "not TOML"),
        ({"task.md": "no front matter"}, "YAML front matter"),
        ({"task.md": "---\na: [\n---\nDo."}, "front matter is not YAML"),
    ],
)
def test_a_malformed_task_is_refused(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        skillsbench.read_task(tmp_path)


def test_a_folder_without_tasks_is_refused(tmp_path):
    with pytest.raises(DataError, match="no folder with instruction.md or task.md"):
        skillsbench.read_tasks(tmp_path)
