"""Loaders against the data sets themselves, and what they refuse."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from lpc_ray.conversations import read_conversations
from lpc_ray.datasets import gsm8k, longhealth, skillsbench
from lpc_ray.errors import DataError
from lpc_ray.sources import read_documents
from tests.shared_data import SHARED, needs_shared_data

TASKS = Path(__file__).resolve().parents[2] / "data" / "tasks"


@needs_shared_data
@pytest.mark.parametrize(("name", "count"), [("train", 7473), ("test", 1319)])
def test_every_gsm8k_problem_is_read_with_the_number_after_its_marker(name, count):
    path = SHARED / "gsm8k" / f"{name}.jsonl"
    problems = gsm8k.read_problems(path)
    assert len(problems) == count
    written = [json.loads(line)["answer"].split("#### ")[1].replace(",", "") for line in path.read_text().splitlines()]
    assert [problem.answer for problem in problems] == list(map(Decimal, written))
    assert not any("<<" in problem.solution for problem in problems)


@needs_shared_data
def test_a_gsm8k_trace_asks_with_the_verifiers_prompt():
    path = SHARED / "gsm8k" / "train.jsonl"
    user, assistant = read_conversations(path)[0]
    assert user["content"] == gsm8k.prompt(gsm8k.read_problems(path)[0].question)
    assert assistant["content"].endswith("#### 72")
    assert read_documents([f"{path}#3"])[0].text.count("Question: ") == 3
    with pytest.raises(DataError, match="got '0' after #"):
        read_documents([f"{path}#0"])


@needs_shared_data
def test_longhealths_twenty_questions_have_five_options_and_the_transcribed_answers():
    path = SHARED / "longhealth" / "patient_03_questions.transcribed.json"
    patient = longhealth.read_patients(path)["patient_03"]
    told = json.loads(path.read_text())["questions"]
    assert patient.name == "Mr. John Williams" and len(patient.questions) == 20
    for question, raw in zip(patient.questions, told, strict=True):
        assert raw[f"answer_{question.correct.lower()}"].strip() == raw["correct"].strip()
        assert all(option in longhealth.prompt(question) for option in question.options)


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


@needs_shared_data
@pytest.mark.parametrize(("name", "no_skill"), [("exceltable-in-ppt", 850), ("weighted-gdp-calc", 1216)])
def test_the_no_skill_prompt_has_the_length_of_the_seeds_table(name, no_skill):
    task = skillsbench.read_task(SHARED / "skillsbench" / name)
    prompt = skillsbench.no_skill_prompt(task)
    assert len(prompt) == no_skill and prompt.startswith(task.instruction)


@needs_shared_data
@pytest.mark.parametrize(
    ("name", "missing", "loaded", "full"),
    [
        ("exceltable-in-ppt", {"pptx": 25534, "xlsx": 5243}, 30812, 31683),
        ("powerlifting-coef-calc", {"xlsx": 5243}, 25808, None),
        ("xlsx-recover-data", {"xlsx": 5243}, 7775, None),
        ("weighted-gdp-calc", {"xlsx": 5243}, 5260, 6497),
    ],
)
def test_loaded_skills_and_full_prompts_have_the_lengths_of_the_seeds_table(tmp_path, name, missing, loaded, full):
    """The skills that are not redistributed are stood in for by texts of their lengths."""
    task = skillsbench.read_task(SHARED / "skillsbench" / name)
    for file in (task.environment / "skills").glob("*/SKILL.md"):
        (tmp_path / file.parent.name).mkdir()
        (tmp_path / file.parent.name / "SKILL.md").write_bytes(file.read_bytes())
    for skill, length in missing.items():
        (tmp_path / skill).mkdir()
        (tmp_path / skill / "SKILL.md").write_text("x" * length)
    [document] = read_documents([tmp_path])
    assert len(document.text) == loaded
    prompt = skillsbench.skill_prompt(document.text, task)
    assert prompt.endswith(skillsbench.no_skill_prompt(task)) and document.text in prompt
    if full is not None:
        assert len(prompt) == full


@needs_shared_data
def test_a_task_without_tests_has_none():
    tasks = skillsbench.read_tasks(SHARED / "skillsbench")
    assert len(tasks) == 5 and all(task.tests is None for task in tasks.values())
    assert tasks["weighted-gdp-calc"].timeout_seconds == 900


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
