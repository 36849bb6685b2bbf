"""What a reply says and whether it declines, for every verifier."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc_ray.config.recipe import VerificationRecipe
from lpc_ray.induction.bo import Candidate
from lpc_ray.model.thinking import opens_thinking, spoken
from lpc_ray.records import Ask, Case
from lpc_ray.verification import build_benchmark
from lpc_ray.verification.base import run_examinations
from lpc_ray.verification.declining import abstains
from lpc_ray.verification.off_source import OffSourceBenchmark
from lpc_ray.verification.sandbox.program import program_in
from lpc_ray.verification.scoring import short_answer
from tests import declining_elsewhere
from tests.declining import ASSERTIONS, DECLINES
from tests.replies import Scripted, reply


@pytest.mark.parametrize("written", [str, str.upper, lambda text: text.replace("'", "’")])
def test_declines_are_told_from_assertions(written):
    assert [text for text in DECLINES if not abstains(written(text))] == []
    assert [text for text in ASSERTIONS if abstains(written(text))] == []


@pytest.mark.parametrize("language", declining_elsewhere.DECLINES)
def test_declines_in_other_languages_are_told_from_assertions(language):
    declines, assertions = (
        declining_elsewhere.lines(texts[language])
        for texts in (declining_elsewhere.DECLINES, declining_elsewhere.ASSERTIONS)
    )
    assert [text for text in declines if not abstains(text)] == []
    assert [text for text in assertions if abstains(text)] == []


@pytest.mark.parametrize("text", ["", " \n", "...", "?"])
def test_silence_is_no_decline(text):
    assert not abstains(text)


@pytest.mark.parametrize(
    "text",
    [
        "not " * 40_000,
        "the " * 40_000,
        "i do not have the " * 9_000,
        "you cannot tell the " * 9_000,
        "but it " * 9_000,
        "no a " * 40_000,
        "je n'ai pas d'" + "une d'" * 20_000,
        "no tengo " + "de " * 40_000,
        "das kann ich " + "so " * 40_000,
    ],
)
def test_a_long_reply_is_read_in_a_moment(text):
    started = time.process_time()
    abstains(text)
    assert time.process_time() - started < 5


THOUGHT = "I am not sure. Could it be 4718? No, that is the old code. #### 3 <answer>C</answer>"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Paris.", "Paris."),
        ("<think>\nIs it 4718?\n</think>\n\nThe code is 1234.", "\n\nThe code is 1234."),
        ("  <think>a</think>Paris", "  Paris"),
        ("<THINK>a</Think>Paris", "Paris"),
        ("<thinking>a</thinking>Paris", "Paris"),
        ("[THINK]a[/THINK]Paris", "Paris"),
        ("◁think▷a◁/think▷Paris", "Paris"),
        ("<think>a</think>Pa<think>b</think>ris", "Paris"),
        ("<think>a <think> b</think>Paris", "Paris"),
        ("<think></think>", ""),
        ("<think>\nIs it 4718, or", ""),
        ("<think>a</think>Paris <think>but", "Paris "),
        ("Is it 4718?\n</think>\n\nThe code is 1234.", "\n\nThe code is 1234."),
        ('He said "4718"</think>1234', "1234"),
        ("```python\nprint(1)\n```\nthat is it</think>1234", "1234"),
        ("A draft:\n```python\nprint(1)\n</think>\n1234", "\n1234"),
        ('Split at the tag "</think>", please.', 'Split at the tag "</think>", please.'),
        ("Write `<think>` first.", "Write `<think>` first."),
        ("```python\ns.split('</think>')\n```", "```python\ns.split('</think>')\n```"),
        ("```python\nopen = <think>\n```", "```python\nopen = <think>\n```"),
        ("I think </b> so", "I think </b> so"),
        ("< think > no tag", "< think > no tag"),
    ],
)
def test_thinking_is_no_part_of_what_a_reply_says(text, said):
    assert spoken(text) == said


@pytest.mark.parametrize(
    ("text", "said"), [("4718?\n</think>1234", "1234"), ("Is it 4718", ""), ("<think>a</think>1234", "1234"), ("", "")]
)
def test_a_reply_begins_inside_the_thinking_that_its_prompt_opened(text, said):
    assert spoken(text, is_thinking=True) == said


@given(st.text(), st.text())
def test_whatever_is_thought_only_what_follows_is_said(thought, said):
    for tag in ("<think>", "</think>", "<", "[", "◁", "`", "~", "'", '"', "“", "”", "‘", "’"):
        thought, said = thought.replace(tag, ""), said.replace(tag, "")
    assert spoken(f"<think>{thought}</think>{said}") == said
    assert spoken(f"{thought}\n</think>{said}") == said == spoken(f"{thought}</think>{said}", is_thinking=True)
    assert spoken(f"<think>{thought}") == "" and spoken(said) == said


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("<|assistant|>\n<think>\n", True),
        ("<think>", True),
        ("<think>\n\n</think>\n\n", False),
        ("assistant\n", False),
        ("", False),
    ],
)
def test_a_prompt_that_ends_in_an_open_tag_opens_thinking(prompt, opens):
    assert opens_thinking(prompt) is opens


@pytest.fixture
def short(tmp_path):
    rows = [{"id": s, "question": f"{s}?", "answers": ["4718"], "split": s} for s in ("tune", "held_out")]
    (tmp_path / "short.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return VerificationRecipe(cases=str(tmp_path / "short.jsonl"))


@pytest.fixture
def gsm8k(tmp_path):
    rows = [{"question": f"{n}?", "answer": "#### 3"} for n in range(2)]
    (tmp_path / "gsm8k.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return VerificationRecipe(
        kind="gsm8k", cases=str(tmp_path / "gsm8k.jsonl"), settings={"num_tune": 1, "num_held_out": 1}
    )


@pytest.fixture
def longhealth(tmp_path):
    options = {f"answer_{letter}": f"text {letter}" for letter in "abcde"} | {"correct": "text c"}
    patient = {"name": "N", "questions": [options | {"No": number, "question": f"Q{number}?"} for number in range(2)]}
    (tmp_path / "longhealth.json").write_text(json.dumps({"p": patient}))
    return VerificationRecipe(kind="longhealth", cases=str(tmp_path / "longhealth.json"), settings={"num_tune": 1})


@pytest.mark.parametrize(
    ("kind", "right"), [("short", "The code is 4718."), ("gsm8k", "#### 3"), ("longhealth", "<answer>C</answer>")]
)
def test_every_verifier_reads_the_answer_after_the_thinking_and_none_before(kind, right, request):
    benchmark = build_benchmark(request.getfixturevalue(kind))
    asks = [(benchmark.cases[0], Ask())]

    def verdict(text: str) -> str:
        return run_examinations(benchmark, asks, Scripted(text), "p")[0].verdict

    assert verdict(f"<think>{THOUGHT}</think>\n{right}") == "pass" == verdict(f"{THOUGHT}\n</think>\n{right}")
    assert verdict(f"<think>{THOUGHT}</think>\nI am done.") == "fail" == verdict(f"<think>{THOUGHT}")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("<think>I am not sure.</think>It is red.", "fail"),
        ("<think>Red?</think>I do not know.", "pass"),
        ("I am not sure.\n</think>\nIt is red.", "fail"),
        ("<think>I am not sure, so I", "fail"),
    ],
)
def test_thinking_is_neither_an_answer_nor_a_decline(text, verdict):
    case = Case("u", "What colour is the owner's hat?", (), "held_out")
    [outcome] = run_examinations(OffSourceBenchmark((case,)), [(case, Ask())], Scripted(text), "p")
    assert outcome.verdict == verdict


def test_a_candidate_that_only_thinks_the_answer_has_no_point():
    def score(text: str) -> float:
        return short_answer(Candidate("", "", ("4718",), reply(text)))

    assert score("<think>hm</think>4718") == 1 and score("<think>4718</think>no") == score("<think>4718") == 0


def test_a_program_in_the_thinking_is_not_the_replys():
    draft, program = "```python\nprint(1)\n```", "```python\nprint(2)\n```"
    assert program_in(spoken(f"<think>{draft}</think>{program}")) == "print(2)"
    assert program_in(spoken(f"<think>{draft}</think>Done.")) is None is program_in(spoken(f"<think>{program}"))
