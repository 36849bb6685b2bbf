"""Loaders against the data sets themselves, which this repository does not carry: `make test-datasets`."""

import json
import os
from decimal import Decimal
from pathlib import Path

import pytest

from lpc_ray.config.recipe import VerificationRecipe
from lpc_ray.errors import DataError
from lpc_ray.sources import gsm8k, longhealth, skillsbench
from lpc_ray.sources.conversations import read_conversations
from lpc_ray.sources.documents import read_documents
from lpc_ray.storage import Store
from lpc_ray.verification import build_benchmark
from lpc_ray.verification.outcomes import Answerer, OutcomeStore, Verifier
from tests.replies import Scripted

SHARED = Path(os.environ["LPC_DATASETS"])


@pytest.mark.parametrize(("name", "count"), [("train", 7473), ("test", 1319)])
def test_every_gsm8k_problem_is_read_with_the_number_after_its_marker(name, count):
    path = SHARED / "gsm8k" / f"{name}.jsonl"
    problems = gsm8k.read_problems(path)
    assert len(problems) == count
    written = [json.loads(line)["answer"].split("#### ")[1].replace(",", "") for line in path.read_text().splitlines()]
    assert [problem.answer for problem in problems] == list(map(Decimal, written))
    assert not any("<<" in problem.solution for problem in problems)


def test_a_gsm8k_trace_asks_with_the_verifiers_prompt():
    path = SHARED / "gsm8k" / "train.jsonl"
    user, assistant = read_conversations(path)[0]
    assert user["content"] == gsm8k.prompt(gsm8k.read_problems(path)[0].question)
    assert assistant["content"].endswith("#### 72")
    assert read_documents([f"{path}#3"])[0].text.count("Question: ") == 3
    with pytest.raises(DataError, match="got '0' after #"):
        read_documents([f"{path}#0"])


def test_longhealths_twenty_questions_have_five_options_and_the_transcribed_answers():
    path = SHARED / "longhealth" / "patient_03_questions.transcribed.json"
    patient = longhealth.read_patients(path)["patient_03"]
    questions = json.loads(path.read_text())["questions"]
    assert patient.name == "Mr. John Williams" and len(patient.questions) == 20
    for question, raw in zip(patient.questions, questions, strict=True):
        assert raw[f"answer_{question.correct.lower()}"].strip() == raw["correct"].strip()
        assert all(option in longhealth.prompt(question) for option in question.options)


@pytest.mark.parametrize(("name", "no_skill"), [("exceltable-in-ppt", 850), ("weighted-gdp-calc", 1216)])
def test_the_no_skill_prompt_has_the_length_of_the_seeds_table(name, no_skill):
    task = skillsbench.read_task(SHARED / "skillsbench" / name)
    prompt = skillsbench.no_skill_prompt(task)
    assert len(prompt) == no_skill and prompt.startswith(task.instruction)


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


def test_a_task_without_tests_has_none():
    tasks = skillsbench.read_tasks(SHARED / "skillsbench")
    assert len(tasks) == 5 and all(task.tests is None for task in tasks.values())
    assert tasks["weighted-gdp-calc"].timeout_seconds == 900


def test_the_real_tasks_come_without_tests_and_are_empty(tmp_path):
    settings = {"tune": ["weighted-gdp-calc"], "seconds": 30}
    recipe = VerificationRecipe(kind="skillsbench", cases=str(SHARED / "skillsbench"), settings=settings)
    verifier = Verifier(build_benchmark(recipe), OutcomeStore(Store(str(tmp_path / "run")), "p"), None, 512)
    [outcome] = verifier.verify(Answerer("s"), "tune", Scripted("x"))
    assert outcome.verdict == "empty"
