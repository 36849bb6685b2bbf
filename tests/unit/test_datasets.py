"""Loaders against the data sets themselves, and what they refuse."""

import json
from pathlib import Path

import pytest

from lpc_ray.errors import DataError
from lpc_ray.sources import longhealth, skillsbench
from lpc_ray.sources.documents import read_documents

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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"correct": "six"}, r"question 1 .No 0.: got the correct text 'six', wanted exactly one of"),
        ({"correct": ""}, r"question 1 .No 0. correct: got '', wanted a text that is not empty$"),
        ({"answer_c": None}, r"question 1 .No 0. answer_c: got nothing, wanted a text"),
        ({"answer_c": ["x"]}, r"question 1 .No 0. answer_c: got a list, wanted a text"),
        ({"answer_c": True}, r"question 1 .No 0. answer_c: got True, wanted a text"),
        ({"question": " "}, r"question 1 .No 0. question: got ' ', wanted a text"),
        ({"No": "x"}, r"question 1 No: got 'x', wanted a whole number$"),
        ({"No": 2.5}, r"question 1 No: got 2.5, wanted a whole number$"),
        ({"No": None}, r"question 1 No: got nothing, wanted a whole number$"),
    ],
)
def test_a_malformed_longhealth_question_is_refused_by_place_and_field(tmp_path, changes, message):
    path = tmp_path / "benchmark.json"
    path.write_text(json.dumps({"patient_01": _patient(**changes)}))
    with pytest.raises(DataError, match=f"^longhealth .*benchmark.json patient_01 {message}"):
        longhealth.read_patients(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": {"text_x": "a"}}, "texts: got key 'text_x', wanted keys such as text_0$"),
        ({"texts": {"text_0": None}}, "texts text_0: got nothing, wanted a text that is not empty$"),
        ({"texts": []}, "texts: got a list, wanted an object of notes$"),
        ({"questions": {}}, "questions: got an object, wanted a list$"),
        (
            {"questions": ["Q?"]},
            "question 1: got 'Q.', wanted an object with No, question, answer_a to answer_e and correct$",
        ),
        ({"name": None}, "name: got nothing, wanted a text that is not empty$"),
    ],
)
def test_a_malformed_longhealth_patient_is_refused_in_plain_words(tmp_path, changes, message):
    path = tmp_path / "benchmark.json"
    path.write_text(json.dumps({"patient_01": _patient() | changes, "patient_02": _patient()}))
    with pytest.raises(DataError, match=f"^longhealth .*benchmark.json patient_01 {message}"):
        longhealth.read_patients(path)
    path.write_text(json.dumps({"patient_01": ["x"]}))
    with pytest.raises(DataError, match="patient_01: got a list, wanted a patient"):
        longhealth.read_patients(path)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"question": "R?"}, "question 2: got No 0 again .first in question 1., wanted each once"),
        ({"No": 1, "question": " q?"}, "question 2: got the text 'q.' again .first in question 1., wanted each once"),
    ],
)
def test_a_longhealth_question_that_is_there_twice_is_refused(tmp_path, second, message):
    path, patient = tmp_path / "benchmark.json", _patient()
    patient["questions"] += _patient(**second)["questions"]
    path.write_text(json.dumps({"patient_01": patient}))
    with pytest.raises(DataError, match=f"patient_01 {message}"):
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
        ("COPY . /app", ["/app/b.txt", "/app/data", "/app/in put.txt"]),
        ("COPY --chown=1 --from=build /x /y\nRUN cp b.txt /y", []),
        ('COPY ["in put.txt", "/root/"]', ["/root/in put.txt"]),
        ('COPY --chown=1 ["b.txt","data/a.csv","/app"]', ["/app/b.txt", "/app/a.csv"]),
        ('COPY "in put.txt" /c.txt', ["/c.txt"]),
        ("COPY b.* \\ \n  # of no use\n  /app/\r\nWORKDIR /app", ["/app/b.txt"]),
        ("COPY skills/one /root/x\nCOPY skills /root/y\nCOPY docker-compose.yml /z", []),
    ],
)
def test_copy_lines_are_understood(tmp_path, lines, wanted):
    (tmp_path / "instruction.md").write_text("Do.")
    (tmp_path / "environment" / "data").mkdir(parents=True)
    (tmp_path / "environment" / "skills" / "one").mkdir(parents=True)
    (tmp_path / "environment" / "skills" / "one" / "SKILL.md").write_text("s")
    (tmp_path / "environment" / "in put.txt").write_text("i")
    (tmp_path / "environment" / "data" / "a.csv").write_text("a")
    (tmp_path / "environment" / "b.txt").write_text("b")
    (tmp_path / "environment" / "Dockerfile").write_text(f"FROM x\n{lines}\n")
    assert [where for _, where in skillsbench.placements(skillsbench.read_task(tmp_path))[1]] == wanted


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"instruction.md": " "}, "empty instruction"),
        ({"instruction.md": "Do.", "task.toml": "a = "}, "not TOML"),
        ({"instruction.md": "Do.", "task.toml": "verifier = 3"}, "task.toml: verifier: got 3, wanted a table"),
        ({"task.md": "no front matter"}, "YAML front matter"),
        ({"task.md": "---\na: [\n---\nDo."}, "front matter is not YAML"),
    ],
)
def test_a_malformed_task_is_refused(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        skillsbench.read_task(tmp_path)


@pytest.mark.parametrize("seconds", ['"x"', "[1]", "nan", "inf", "-3", "0", "true", "9" * 400])
@pytest.mark.parametrize("layout", ["task.toml", "task.md"])
def test_a_timeout_that_is_no_time_is_refused(tmp_path, layout, seconds):
    (tmp_path / "task.md").write_text(
        f"---\nverifier: {{timeout_sec: {seconds.replace('nan', '.nan').replace('inf', '.inf')}}}\n---\nDo."
    )
    if layout == "task.toml":
        (tmp_path / "instruction.md").write_text("Do.")
        (tmp_path / "task.toml").write_text(f"[verifier]\ntimeout_sec = {seconds}\n")
    with pytest.raises(
        DataError, match=rf"{layout}: verifier.timeout_sec: got .*, wanted a number of seconds above 0$"
    ):
        skillsbench.read_task(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('COPY "a b', "wanted sources and a target: no closing quotation"),
        ("COPY a", "wanted sources and a target$"),
        ('COPY ["a"]', "wanted sources and a target$"),
        ("COPY", "wanted sources and a target$"),
        ("WORKDIR 'x", "wanted one path: no closing quotation"),
        ("WORKDIR", "wanted one path$"),
        ("WORKDIR a b", "wanted one path$"),
        ("COPY absent.txt /root/", "wanted sources that are there: .*environment has no 'absent.txt'$"),
        ("COPY *.csv /root/", r"environment has no '\*\.csv'$"),
        ('COPY ["no such", "/root/"]', "environment has no 'no such'$"),
        ("COPY ../x /root/", "wanted sources inside .*environment$"),
        ("COPY a**b /root/", "wanted a source that can be looked for"),
    ],
)
def test_a_dockerfile_that_cannot_be_followed_is_refused(tmp_path, line, message):
    (tmp_path / "instruction.md").write_text("Do.")
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "Dockerfile").write_text(f"FROM x\n{line}\n")
    with pytest.raises(DataError, match=f"^skillsbench .*Dockerfile: got .*{message}"):
        skillsbench.placements(skillsbench.read_task(tmp_path))


def test_a_folder_without_tasks_is_refused(tmp_path):
    with pytest.raises(DataError, match="no folder with instruction.md or task.md"):
        skillsbench.read_tasks(tmp_path)
