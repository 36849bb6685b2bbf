"""Verifier kinds against replies that are right, wrong, empty and malformed."""

import json
import math
import sys
import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from lpc_ray.config.recipe import VerificationRecipe
from lpc_ray.errors import ConfigError, DataError
from lpc_ray.records import SCORED, PrefixRef, Reply, Tally, digest_of
from lpc_ray.report.ledger.row import held_out_fields
from lpc_ray.sources.gsm8k import marked_number
from lpc_ray.storage import Store
from lpc_ray.verification import build_benchmark
from lpc_ray.verification.base import protocol_of, unscored_words
from lpc_ray.verification.longhealth import tagged_letter, untagged_letter
from lpc_ray.verification.outcomes import Answerer, OutcomeStore, Verifier
from lpc_ray.verification.sandbox.program import program_in
from lpc_ray.verification.skillsbench import leaked
from tests.replies import Scripted, reply

OPTIONS = ["First vertebra", "Seventh vertebra", "Lumbar vertebra", "B and C", "None of these"]


@pytest.fixture
def gsm8k_file(tmp_path):
    rows = [
        {"question": f"{n} and {n}?", "answer": f"It is <<{n}+{n}={2 * n}>>{2 * n}.\n#### {2 * n}"} for n in range(40)
    ]
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def _verifier(tmp_path, recipe: VerificationRecipe, system: str | None = None) -> Verifier:
    return Verifier(build_benchmark(recipe), OutcomeStore(Store(str(tmp_path / "run")), "p"), system, 32)


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("so\n#### 18", "18"),
        ("#### $1,250.50 in all", "1250.5"),
        ("#### 3\nNo, again.\n#### -4", "-4"),
        ("#### 12 - 5 = 7 apples", "7"),
        ("the answer is 18", None),
        ("#### none", None),
        ("####\n18", "18"),
        ("#### 18 ####", "18"),
        ("**#### 18 ####**", "18"),
        ("#### 18\n#### unsure", None),
        ("#### **18**", "18"),
        ("#### $\\boxed{18}$.", "18"),
        ("#### \\boxed{1{,}250\\text{ dollars}}", "1250"),
        ("#### (-3)", "-3"),
        ("#### -$3", "-3"),
        ("#### $-3", "-3"),
        ("#### \u22125", "-5"),
        ("#### US$1,250.50.", "1250.5"),
        ("#### 18.00\u20ac", "18"),
        ("#### 18.", "18"),
        ("#### 7km/h", "7"),
        ("#### 50\\%", "50"),
        ("#### 5-year", "5"),
        ("#### .5", "0.5"),
        ("#### 1e3", "1000"),
        ("#### 1.5E-2", "0.015"),
        ("#### 1\u00a0234\u202f567\u2009890", "1234567890"),
        ("#### 2000 100", "100"),
        ("#### 5 18", "18"),
        ("#### x=18", "18"),
        ("#### Answer:18", "18"),
        ("#### Step 3: 18", "18"),
        ("#### 18<|im_end|>", "18"),
        *(
            (f"#### {answer}", None)
            for answer in (
                "3/4",
                "3 / 4",
                "\\frac{3}{4}",
                "(3)/(4)",
                "7 1/2",
                "5\u00bd",
                "\u00bd",
                "1.234,50",
                "1,5",
                "12,50",
                "1,25,000",
                "10-5",
                "10 - 5",
                "3*4",
                "3 x 4",
                "2^{3}",
                "5\u00b2",
                "\\sqrt{2}",
                "-\\boxed{3}",
                "2:30",
                "2:30pm",
                "3-5",
                "18/2",
                "1_000",
                "1 000",
                "$12 345 678",
                "A4",
            )
        ),
        ("", None),
    ],
)
def test_gsm8k_reads_the_last_number_after_the_marker(reply, number):
    assert marked_number(reply) == (None if number is None else Decimal(number))


@given(st.integers(-(10**9), 10**9), st.text())
def test_gsm8k_reads_any_number_back_whatever_stands_before(number, before):
    assert marked_number(f"{before}\n#### {number:,}") == number


def test_gsm8k_refuses_a_question_that_is_drawn_twice(gsm8k_file):
    rows = gsm8k_file.read_text().splitlines()
    gsm8k_file.write_text("\n".join([*rows[:39], rows[3].replace("and 3", "AND  3")]))
    recipe = VerificationRecipe(kind="gsm8k", cases=str(gsm8k_file), settings={"num_tune": 20, "num_held_out": 20})
    with pytest.raises(DataError, match="got the question of problem 4 again as problem 40, wanted each once"):
        build_benchmark(recipe)


def test_gsm8k_scores_strictly_and_tells_the_lenient_score_beside(tmp_path, gsm8k_file):
    settings = {"num_tune": 4, "num_held_out": 3}
    verifier = _verifier(tmp_path, VerificationRecipe(kind="gsm8k", cases=str(gsm8k_file), settings=settings))
    tune = [case for case in verifier.benchmark.cases if case.split == "tune"]
    texts = [f"#### {tune[0].answers[0]}", f"It is {tune[1].answers[0]}", "#### 999", ""]
    outcomes = verifier.verify(Answerer("s"), "tune", Scripted(*texts))
    assert [outcome.verdict for outcome in outcomes] == ["pass", "fail", "fail", "fail"]
    assert [outcome.figures["lenient"] for outcome in outcomes] == [1, 1, 0, 0]
    assert [outcome.figures["marked"] for outcome in outcomes] == [1, 0, 1, 0]
    assert {outcome.stage for outcome in outcomes[1:]} == {"wrong_output"}
    cut = verifier.verify(Answerer("t"), "held_out", Scripted("and so", finish_reason="length"))
    assert [outcome.figures["cap_hit"] for outcome in cut] == [1, 1, 1]


def test_gsm8k_draws_the_same_disjoint_cases_from_one_seed_and_others_from_another(gsm8k_file):
    def ids(split, **settings):
        recipe = VerificationRecipe(
            kind="gsm8k", cases=str(gsm8k_file), settings={"num_tune": 5, "num_held_out": 9, **settings}
        )
        return [case.id for case in build_benchmark(recipe).cases if case.split == split]

    assert ids("tune") == ids("tune") != ids("tune", seed=1)
    assert not set(ids("tune")) & set(ids("held_out")) and len(ids("held_out")) == 9
    with pytest.raises(DataError, match="got 40 problems"):
        ids("tune", num_held_out=36)


@pytest.mark.parametrize(
    ("reply", "tagged", "untagged"),
    [
        ("<answer>B</answer>", "B", None),
        ("<answer> (b) Seventh</answer>", "B", None),
        ("<answer>b</answer>", "B", None),
        ("<ANSWER>(b)</Answer>", "B", None),
        ("<answer>**B**</answer>", "B", None),
        ("<answer>letter B</answer>", "B", None),
        ("<answer>Option b</answer>", "B", None),
        ("<answer>The correct answer is: option B.</answer>", "B", None),
        ("<answer>B seventh vertebra.</answer>", "B", None),
        ("<answer>B\nIt broke.</answer>", "B", None),
        ("<answer>D. B and C</answer>", "D", None),
        ("<answer>B. or C.</answer>", None, None),
        ("<answer>B: C is wrong</answer>", None, None),
        ("<answer>a fracture</answer>", None, None),
        ("<answer>A fracture</answer>", None, None),
        ("\u0130<answer><answer>B</answer></answer>", "B", None),
        ("<answer>B</answer> or <answer>C", "B", None),
        ("<answer>B. Seventh vertebra</answer>", "B", None),
        ("<answer>seventh VERTEBRA</answer>", "B", None),
        ("<answer>B and C</answer>", "D", None),
        ("<answer>A</answer> no, <answer>C</answer>", "C", None),
        ("<answer></answer>", None, None),
        ("<answer>A or B</answer>", None, None),
        ("The answer is B.", None, "B"),
        ("Option C", None, "C"),
        ("The answer is a seventh vertebra fracture.", None, "B"),
        ("Answer: a fracture of the seventh vertebra", None, "B"),
        ("Answer: A fracture of the seventh vertebra", None, "B"),
        ("The answer is A because of the scan", None, "A"),
        ("The answer is option A fully", None, "A"),
        ("Neither option A", None, None),
        ("Neither option A nor option B, but option C", None, "C"),
        ("It isn't option A. Option B fits.", None, "B"),
        ("Option A is wrong, the answer is **C**.", None, "C"),
        ("answer: b", None, "B"),
        ("The answer is (b), as the scan says", None, "B"),
        ("answer: b is what I say", None, None),
        ("The answer is A-fib", None, None),
        ("A. or B.", None, None),
        ("The answer is B or C", None, None),
        ("It was the seventeenth vertebrae.", None, None),
        ("E", None, "E"),
        ("It was the seventh vertebra.", None, "B"),
        ("First vertebra or seventh vertebra", None, None),
        ("A patient came.", None, None),
        ("", None, None),
    ],
)
def test_longhealth_reads_the_tag_and_never_takes_silence_for_option_a(reply, tagged, untagged):
    assert tagged_letter(reply, OPTIONS) == tagged
    if tagged is None and "<answer>" not in reply:
        assert untagged_letter(reply, OPTIONS) == untagged


@pytest.mark.parametrize(
    "reply",
    ["<answer>" * 50_000, "</answer>" * 50_000, "answer" + " " * 50_000, "not " * 50_000, "<answer>B" + " " * 50_000],
)
def test_longhealth_reads_a_long_reply_in_a_moment(reply):
    started = time.perf_counter()
    assert tagged_letter(reply, OPTIONS) is None and untagged_letter(reply, OPTIONS) is None
    assert time.perf_counter() - started < 2


def test_longhealth_reports_strict_lenient_tags_and_cap_hits(tmp_path):
    question = {f"answer_{letter}": text for letter, text in zip("abcde", OPTIONS, strict=True)} | {
        "correct": OPTIONS[1]
    }
    questions = [question | {"No": number, "question": f"Q{number}?"} for number in range(6)]
    path = tmp_path / "longhealth.json"
    path.write_text(json.dumps({"patient_01": {"name": "N", "questions": questions}}))
    recipe = VerificationRecipe(kind="longhealth", cases=str(path), settings={"num_tune": 2})
    verifier = _verifier(tmp_path, recipe)
    replies = Scripted("<answer>B</answer>", "The answer is B", "<answer>A</answer>", "", finish_reason="length")
    outcomes = verifier.verify(Answerer("s"), "held_out", replies)
    assert [outcome.passed for outcome in outcomes] == [1, 0, 0, 0] and sum(outcome.total for outcome in outcomes) == 4
    assert [outcome.figures["lenient"] for outcome in outcomes] == [1, 1, 0, 0]
    assert [outcome.figures["tagged"] for outcome in outcomes] == [1, 0, 1, 0]
    assert held_out_fields(outcomes)["figures"] == {"lenient": 0.5, "tagged": 0.5, "cap_hit": 1.0}
    with pytest.raises(DataError, match="got patient 'patient_09'"):
        build_benchmark(VerificationRecipe(kind="longhealth", cases=str(path), settings={"patients": ["patient_09"]}))
    with pytest.raises(DataError, match="wanted more than num_tune = 6"):
        build_benchmark(VerificationRecipe(kind="longhealth", cases=str(path), settings={"num_tune": 6}))


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("gsm8k", {"patients": []}, "got 'patients', wanted for kind gsm8k: num_tune, num_held_out, seed$"),
        ("short_answer", {"foo": 1}, "got 'foo', wanted for kind short_answer: none$"),
        ("gsm8k", {"num_tune": 0}, "num_tune: got 0, wanted greater than or equal to 1$"),
        ("gsm8k", {"seed": True}, "seed: got true, wanted a number$"),
        ("longhealth", {"patients": ["p", "p"]}, "patients: got 'p' more than once, wanted each once$"),
        ("skillsbench", {}, "missing key tune$"),
        ("skillsbench", {"tune": ["a", "a"]}, "tune: got 'a' more than once, wanted each once$"),
        ("skillsbench", {"tune": ["a"], "seconds": math.inf}, "seconds: got inf, wanted a finite number$"),
        ("skillsbench", {"tune": ["a"], "test_seconds": math.nan}, "test_seconds: got nan, wanted a finite number$"),
    ],
)
def test_a_setting_that_the_kind_does_not_have_or_take_is_refused(kind, settings, message):
    with pytest.raises(ConfigError, match=rf"^recipe\.verification\.settings: {message}"):
        build_benchmark(VerificationRecipe(kind=kind, cases="absent", settings=settings))


def test_short_answers_keep_their_protocol(tmp_path):
    rows = [{"id": split, "question": f"{split}?", "answers": ["x"], "split": split} for split in ("tune", "held_out")]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    benchmark = build_benchmark(VerificationRecipe(cases=str(path)))
    cases = [[row["id"], row["question"], row["answers"], row["split"]] for row in rows]
    assert protocol_of(benchmark, "", 24, {"id": "m"}) == digest_of("short_answer/5", cases, "", 24, {"id": "m"})


def test_a_prefix_gets_exactly_the_prompt_of_the_bare_model(tmp_path, gsm8k_file):
    verifier = _verifier(
        tmp_path, VerificationRecipe(kind="gsm8k", cases=str(gsm8k_file), settings={"num_held_out": 3}), ""
    )
    case = verifier.benchmark.cases[0]
    bare = verifier.ask(Answerer("no_context"), case)
    prefixed = verifier.ask(Answerer("d", prefix=PrefixRef("d", "folder", 8)), case)
    full = verifier.ask(Answerer("full", document="the text"), case)
    assert bare.messages == prefixed.messages and prefixed.prefix is not None
    assert full.messages[0] == {"role": "system", "content": "the text"} and full.messages[1:] == bare.messages[1:]


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("Here:\n```python\nprint(1)\n```\nDone.", "print(1)"),
        ("```py\na\n```\n```python3\nb\n```", "b"),
        ("```python\nprint(1)", "print(1)"),
        ("```\nprint(1)\n```", None),
        ("print(1)", None),
        ("```python\n\n```", None),
        ("```python\r\na\r\nb\r\n```\r\n", "a\nb"),
        ("~~~python\n```\na\n~~~", "```\na"),
        ("``` python\na\n```", "a"),
        ("```Python 3\na\n```", "a"),
        ("```python title=x\na\n```", "a"),
        ("```python\na\n   ```\nb", "a"),
        ("```python\na = 'x\n    ```\n'\n```\nb", "a = 'x\n    ```\n'"),
        ("````python\n```\na\n````\nb", "```\na"),
        ("1. So:\n   ```python\n   if a:\n       b\n   ```\nb", "if a:\n    b"),
        ("- ```python\n  a\n  ```\nb", "a"),
        ("```python\na\n```\n```text\nb\n```", "a"),
        ("```text\n```python\na\n```", None),
        ("```python``` is meant\n```py\na\n```", "a"),
        ("```pythonic\na\n```", None),
        ("```python\nprint('\ud800')", "print('?')"),
        ("", None),
    ],
)
def test_the_last_python_block_is_the_program(reply, program):
    assert program_in(reply) == program


LINES = [
    "a",
    "  b",
    "",
    "```",
    "````",
    "~~~",
    "   ```",
    "  ~~~~ ",
    "```python",
    " ~~~py x",
    "``` python3",
    "````text",
    "```a`b",
]


@given(st.lists(st.sampled_from(LINES)))
def test_python_blocks_are_those_of_markdown(lines):
    reply = "\n".join(lines)
    fences = MarkdownIt("zero").enable("fence").parse(reply)
    blocks = [
        token.content.rstrip()
        for token in fences
        if token.type == "fence" and (token.info.split() or [""])[0] in ("python", "python3", "py")
    ]
    assert program_in(reply) == (blocks[-1] or None if blocks else None)


@pytest.mark.parametrize("line", ["```python\n", "x = 1\n", "x", "   ```python\n   x\n   ````\n", "\r\n", "`", " "])
def test_a_reply_of_five_megabytes_is_read_in_a_moment(line):
    reply = "```python\n" + line * (5_000_000 // len(line))
    started = time.process_time()
    program_in(reply)
    assert time.process_time() - started < 2


def test_a_skills_text_in_a_prompt_is_found_unless_the_task_itself_says_it():
    skill = "Set the valve to the third mark and wait until the needle stands still for ten seconds."
    assert leaked(f"Do it.\n\n{skill}", skill) == "Set the valve to the third mark and wait until the needle"
    assert leaked("Set the valve to the third mark.", skill) is None
    assert leaked(f"Do it. {skill}", skill, allowed=skill) is None


def test_a_task_whose_inputs_cannot_be_placed_is_refused_where_it_is_chosen(tmp_path):
    for name, line in {"good": "", "bad": "COPY absent.txt /root/"}.items():
        (tmp_path / name / "environment").mkdir(parents=True)
        (tmp_path / name / "instruction.md").write_text("Do.")
        (tmp_path / name / "environment" / "Dockerfile").write_text(f"FROM x\n{line}\n")
    build_benchmark(VerificationRecipe(kind="skillsbench", cases=str(tmp_path), settings={"tune": ["good"]}))
    with pytest.raises(DataError, match="environment has no 'absent.txt'"):
        build_benchmark(VerificationRecipe(kind="skillsbench", cases=str(tmp_path), settings={"tune": ["bad"]}))


def test_a_machine_without_pytest_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytest", None)
    with pytest.raises(ConfigError, match=r"skillsbench: got no pytest, .* pip install 'lpc-ray\[sandbox\]'"):
        build_benchmark(VerificationRecipe(kind="skillsbench", cases=str(tmp_path), settings={"tune": ["a"]}))


def test_a_case_too_long_for_the_context_is_not_scored_and_is_asked_again(tmp_path, gsm8k_file):
    """As by an engine of 64 tokens, then one with room: no case is lost, and no other is asked twice."""
    settings = {"num_tune": 4, "num_held_out": 2, "seed": 0}
    verifier = _verifier(tmp_path, VerificationRecipe(kind="gsm8k", cases=str(gsm8k_file), settings=settings))
    long = [case for case in verifier.benchmark.cases if case.split == "tune"][2]
    asked = []

    def engine(asks):
        asked.append(len(asks))
        is_long = [long.question in ask.messages[-1]["content"] and len(asked) == 1 for ask in asks]
        return [Reply.too_long(99, 0) if too_long else reply("#### 1") for too_long in is_long]

    outcomes = verifier.verify(Answerer("a"), "tune", engine)
    [unscored] = [outcome for outcome in outcomes if outcome.verdict not in SCORED]
    assert (unscored.case_id, unscored.verdict, unscored.stage) == (long.id, "verifier_error", "prompt_too_long")
    assert unscored.prompt_tokens == 99 and Tally.of(outcomes).total == 3
    assert unscored_words(outcomes) == "1 of 4 not scored: 1 verifier_error (prompt_too_long)"
    assert not verifier.is_verified("a", "tune")
    again = verifier.verify(Answerer("a"), "tune", engine)
    assert asked == [4, 1] and Tally.of(again).total == 4 and unscored_words(again) == ""
