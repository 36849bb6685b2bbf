"""Held-out questions in a source: refused, told as doubtful, or only its facts."""

import json
import random
import time
from pathlib import Path

import pytest

from lpc_ray.config.recipe import VerificationRecipe
from lpc_ray.errors import DataError
from lpc_ray.induction import build_family
from lpc_ray.records import Case, Document
from lpc_ray.run.facts import doubts_in_words
from lpc_ray.run.leakage import check_family, check_sources
from lpc_ray.sources.documents import read_documents
from lpc_ray.verification import build_benchmark
from lpc_ray.verification.repeats import Question, repeats
from lpc_ray.verification.short_answer import ShortAnswer

DEMO = Path("data/demo")
CASE = Case("c1", "Where are the bicycles of visitors stored?", ("chapel",), "held_out")


def _check(text: str, *cases: Case) -> list[str]:
    return check_sources([Document("doc.md", text, "d")], ShortAnswer(cases or (CASE,)))


def _held_out(benchmark) -> list[Case]:
    return [case for case in benchmark.cases if case.split == "held_out"]


@pytest.mark.parametrize(
    "text",
    [
        "Intro.\n\nQ: Where are the bicycles of visitors stored?\nA: In the chapel.",
        "| Where are the bicycles of visitors stored? | chapel |",
        '{"question": "Where are the bicycles of visitors stored?", "answer": "chapel"}',
        "WHERE ARE THE   BICYCLES\nOF VISITORS STORED",
        "where are the bicycles of visitors stored,chapel",
        "**Where are the bicycles of visitors stored?** In the chapel.",
        "1. Where are the bicycles of visitors stored?",
        "Where are the bi\u00adcycles of visitors stored?",
        "Ｗｈｅｒｅ are the bicycles of visitors stored?",
        "Where are the bycicles of visitors stored?",
        "Where are bicycles of the visitors stored?",
        "Q: Where are the bikes of visitors stored? A: the chapel",
    ],
)
def test_a_source_that_asks_a_held_out_question_is_refused(text):
    with pytest.raises(
        DataError, match=r"^source doc.md line \d: got .*of held-out case 'c1' .*, wanted a source without"
    ):
        _check("The station stands on an island.\n" + text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The bicycles of visitors are stored in the chapel.",
        "Bicycles: chapel. Where visitors go, are bicycles stored?",
        "Where are the boats of visitors stored? In the harbour.",
        "Where are the skis?",
        "The chapel is where the bicycles are. Visitors stored them there.",
    ],
)
def test_a_source_that_holds_the_fact_or_asks_for_another_passes_without_a_word(text):
    assert _check(text) == []


def test_a_doubtful_case_is_a_line_that_names_it_and_its_place():
    [line] = _check("One.\nTwo.\nWhere do visitors find that the bicycles of visitors are stored? In the chapel.")
    assert line.startswith("held-out case c1: source doc.md line 3 may ask it in other words: 'the bicycles")
    assert doubts_in_words([line]) == line and doubts_in_words(["a"] * 12).endswith("a; and 2 more")


@pytest.mark.parametrize(
    ("question", "text", "is_refused"),
    [
        ("The station cat is called", "The station cat is called Turnip.", False),
        ("Why?", "He asked: why? Nobody knew.", True),
        ("Which code?", "This tells which code fits.", False),
        ("Who wears a purple badge?", "Everyone who wears a purple badge is a visitor.", False),
        ("Who wears a purple badge?", "Who wears a purple badge? Visitors.", True),
        ("自行车放在哪里？", "问：自行车放在哪里？答：教堂。", True),
        ("自行车放在哪里？", "自行车放在教堂里。", False),
        ("จักรยานเก็บไว้ที่ไหน?", "ถาม จักรยานเก็บไว้ที่ไหน? ตอบ โบสถ์", True),
    ],
)
def test_short_open_and_foreign_questions(question, text, is_refused):
    case = Case("c1", question, ("x",), "held_out")
    if is_refused:
        with pytest.raises(DataError, match="held-out case 'c1'"):
            _check(text, case)
    else:
        _check(text, case)


def test_tune_questions_may_stand_in_a_source():
    assert _check(CASE.question, Case("t", CASE.question, ("chapel",), "tune")) == []


def test_the_demo_and_its_facts_pass_and_its_questions_do_not(tmp_path):
    benchmark = build_benchmark(VerificationRecipe(cases=str(DEMO / "cases.jsonl")))
    documents = read_documents([DEMO / "handbook.md"])
    assert check_sources(documents, benchmark) == []
    asked = "\n".join(f"Q: {case.question}\nA: {case.answers[0]}" for case in _held_out(benchmark))
    (tmp_path / "handbook.md").write_text(f"{documents[0].text}\n\n{asked}")
    with pytest.raises(
        DataError, match="handbook.md line 63: got the question of held-out case 'c001'.*; 65 more of 66"
    ):
        check_sources(read_documents([tmp_path / "handbook.md"]), benchmark)


@pytest.fixture
def gsm8k(tmp_path):
    """40 problems of some thirty words; half are tune and held-out cases."""
    rng, things = (
        random.Random(0),
        ["apples", "pears", "boats", "ropes", "lamps", "coins", "books", "stones", "shells", "nets"],
    )
    rows = []
    for number in range(40):
        a, b = rng.sample(things, 2)
        price, count = rng.randint(2, 90), rng.randint(2, 90)
        rows.append(
            {
                "question": f"Person {number} sells {count} {a} for {price} dollars each at the market of "
                f"town {number * 7}, buys {b} with half of the money and gives "
                f"{number + 3} of them away. How much money in dollars is left?",
                "answer": f"#### {number}",
            }
        )
    path = tmp_path / "test.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_a_file_of_problems_is_no_source_for_its_own_held_out_problems(gsm8k):
    settings = {"num_tune": 10, "num_held_out": 10}
    benchmark = build_benchmark(VerificationRecipe(kind="gsm8k", cases=str(gsm8k), settings=settings))
    for source in (f"{gsm8k}#40", str(gsm8k)):
        with pytest.raises(DataError, match="test.jsonl.* line .*held-out case 'gsm8k-.*; 9 more of 10"):
            check_sources(read_documents([source]), benchmark)


def test_a_problem_with_other_numbers_is_doubtful(gsm8k):
    settings = {"num_tune": 10, "num_held_out": 10}
    benchmark = build_benchmark(VerificationRecipe(kind="gsm8k", cases=str(gsm8k), settings=settings))
    asked = benchmark.asked(_held_out(benchmark)[0])
    other = asked.replace(" dollars each", "7 dollars each").replace(" away", "1 away")
    doubts = check_sources([Document("d", f"Question: {other}\nAnswer: 5", "d")], benchmark)
    assert any(_held_out(benchmark)[0].id in line for line in doubts)


def test_a_family_may_not_be_given_a_problem_without_the_form_of_its_answer(gsm8k, tmp_path):
    benchmark = build_benchmark(
        VerificationRecipe(kind="gsm8k", cases=str(gsm8k), settings={"num_tune": 10, "num_held_out": 10})
    )
    (tmp_path / "rows.jsonl").write_text(
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": f"Solve this. {benchmark.asked(_held_out(benchmark)[0])}"},
                    {"role": "assistant", "content": "5"},
                ]
            }
        )
    )
    family = build_family("curated", {"paths": [str(tmp_path / "rows.jsonl")]})
    with pytest.raises(DataError, match="families.curated: got the question of held-out case 'gsm8k-"):
        check_family("curated", family, benchmark)


@pytest.mark.parametrize("length", [9, 40])
def test_a_thousand_questions_are_looked_for_in_ten_megabytes_in_seconds(length):
    rng = random.Random(1)
    words = [
        f"{rng.choice('bcdfglmnprst')}{rng.choice('aeiou')}{rng.choice('lmnrst')}{number % 997}"
        for number in range(5000)
    ]
    text = ". ".join(" ".join(rng.choices(words, k=12)) for _ in range(120_000))
    questions = [
        Question(str(number), "What is " + " ".join(rng.choices(words, k=length)) + "?") for number in range(1000)
    ]
    text += f"\n{questions[7].text}\n"
    started = time.process_time()
    assert [found.question.case for found in repeats(questions, [text])] == ["7"] and len(text) > 8_000_000
    assert time.process_time() - started < 60
