"""Judging short answers, and the cases file."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc_ray.config.recipe import VerificationRecipe
from lpc_ray.errors import DataError
from lpc_ray.storage import Store
from lpc_ray.verification import build_benchmark
from lpc_ray.verification.outcomes import Answerer, OutcomeStore, Verifier
from lpc_ray.verification.short_answer import is_answered, normalise, read_cases
from tests.replies import Scripted


@pytest.mark.parametrize(
    ("reply", "answers", "passes"),
    [
        ("The gate code is 4718.", ("4718",), True),
        ("The gate code is 47180.", ("4718",), False),
        ("It is at 12:40, every day", ("12:40",), True),
        ("It is at 12.40", ("12:40",), False),
        ("ＭＡＰ ｒｏｏｍ", ("the map room",), True),
        ("the map's room", ("map room",), False),
        ("In the first-aid room", ("first aid",), True),
        ("1,250 metres", ("1,250",), True),
        ("seventeen, minutes", ("17 minutes", "seventeen minutes"), True),
        ("", ("x",), False),
        ("It is -5 degrees", ("5",), False),
        ("It is 5 degrees", ("-5",), False),
        ("It is \u22125.", ("-5",), True),
        ("It is -$5.", ("-5",), True),
        ("It is (-0.5)", ("-0.5",), True),
        ("3-5 days", ("3 5 days",), True),
        ("3-5 days", ("-5",), False),
        ("the dial C-5", ("c 5",), True),
        ("in C++.", ("C",), False),
        ("in C++.", ("C++",), True),
        ("in C++11", ("c++",), True),
        ("in C#, then", ("C#",), True),
        ("in C", ("C#",), False),
        ("salt+pepper", ("salt",), True),
        ("50%", ("50",), True),
        ("50 %", ("50%",), True),
        ("50", ("50%",), False),
        ("Vitamin C", ("vitamin A",), False),
        ("Take vitamin A daily", ("vitamin A",), True),
        ("Take vitamin a daily", ("vitamin A",), True),
        ("It is plan B.", ("Plan A",), False),
        ("hepatitis B vaccine", ("hepatitis A vaccine",), False),
        ("the hepatitis A vaccine", ("hepatitis A vaccine",), True),
        ("turn off the light", ("turn off light",), True),
        ("turn off light", ("Turn off the light",), True),
        ("dog", ("A dog",), True),
        ("the", ("the light",), False),
        ("माला", ("मेला",), False),
        ("यह मेला है", ("मेला",), True),
        ("दिन", ("दान",), False),
        ("答えは東京です。", ("東京",), True),
        ("京都です", ("東京",), False),
        ("午後3時です", ("3時",), True),
        ("午後13時です", ("3時",), False),
        ("อยู่ที่ห้องสมุดครับ", ("ห้องสมุด",), True),
        ("co\u00adoperate", ("cooperate",), True),
        ("co\u200boperate", ("cooperate",), True),
        ("cafe\u0301", ("café",), True),
    ],
)
def test_a_reply_passes_when_an_accepted_form_stands_in_it(reply, answers, passes):
    assert is_answered(reply, answers) is passes


@given(st.text())
def test_normalising_is_idempotent(text):
    assert normalise(" ".join(normalise(text))) == normalise(text)


def _case(**changes) -> str:
    return json.dumps({"id": "c1", "question": "Q?", "answers": ["a thing"], "split": "tune", **changes})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"id": "c1", "answers": ["x"], "split": "tune"}'], "line 1: field 'question'"),
        ([_case(answers=[])], "line 1: field 'answers'"),
        ([_case(answers=["the"])], "at least one word"),
        ([_case(answers="x")], "must be a list"),
        ([_case(split="test")], "got split 'test'"),
        ([_case(), _case(question="other")], "line 2: got id 'c1' again"),
        ([_case(), _case(id="c2")], "line 2: got question 'Q\\?' again"),
        ([_case(), _case(id="c2", question="  the q !")], "line 2: got question '  the q !' again .first on line 1"),
        (["{"], "line 1: not JSON"),
        ([_case()], "no case of split held_out"),
    ],
)
def test_a_malformed_cases_file_is_refused_with_line_and_field(tmp_path, lines, message):
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=message):
        read_cases(path)


def test_scores_wanted_together_come_in_order_and_are_asked_once(tmp_path):
    cases = [_case(), _case(id="c2", question="R?", split="held_out")]
    (tmp_path / "cases.jsonl").write_text("\n".join(cases))
    benchmark = build_benchmark(VerificationRecipe(cases=str(tmp_path / "cases.jsonl")))
    verifier = Verifier(benchmark, OutcomeStore(Store(str(tmp_path)), "p"), None, 8)
    knows, asked = Answerer("knows", document="knows"), Scripted("a thing")
    wanted = [(knows, "tune"), (Answerer("other"), "held_out"), (knows, "tune")]
    verified = verifier.verify_all(wanted, asked)
    assert [[outcome.case_id for outcome in outcomes] for outcomes in verified] == [["c1"], ["c2"], ["c1"]]
    assert len(asked.asked) == 2 and verifier.verify_all(wanted, asked) == verified and len(asked.asked) == 2
    assert verifier.verify_all([], asked) == []
