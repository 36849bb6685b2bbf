"""The audit of a trace set, against counts made by hand and scipy's entropy."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import entropy

from lpc_ray.records import TOP_K, TraceRow
from lpc_ray.report.pages.render import html_page
from lpc_ray.report.statistics.tables import run_tables
from lpc_ray.traces.grounding import absent, claims
from lpc_ray.traces.quality import entropies, printed, quality

SOURCE = "The director, Marta Quillen, keeps 4718 and 12:40 in a “blue folder”. Lunch is in the Map Room."


@pytest.mark.parametrize(
    ("text", "numbers", "names", "quotes"),
    [
        ("Marta Quillen said 4718. Then Tobias left at 12:40.", ("4718", "12:40"), ("Marta Quillen", "Tobias"), ()),
        ("The Map Room. Lunch!", (), ("Map Room",), ()),
        ("She met Marta's cat, and Marta again.", (), ("Marta",), ()),
        ('He wrote "blue folder" and `code` and “x y”.', (), (), ("blue folder", "code", "x y")),
        ("- First point\n- Second: Third\n1. Fourth", ("1",), (), ()),
        ("1,200.50 of 3", ("1,200.50", "3"), (), ()),
        ("", (), (), ()),
    ],
)
def test_claims_are_numbers_names_and_quotes(text, numbers, names, quotes):
    found = claims(text)
    assert (found.numbers, found.names, found.quotes) == (numbers, names, quotes)


def test_what_the_source_does_not_hold_is_absent():
    stated = claims(
        'Then MARTA quillen, Marta Quillen and Tobias Renn took 47 of 4718 to the "Blue  folder" or "red one".'
    )
    missing = absent(stated, SOURCE)
    assert missing.numbers == ("47",) and missing.names == ("Tobias Renn",) and missing.quotes == ("red one",)


@pytest.mark.parametrize(
    ("text", "source", "missing"),
    [
        ("It is 1000 m high.", "It rises 1,000 metres.", ()),
        ("5 million", "5,000,000 birds", ()),
        ("In 1978.", "On 1978-05-02.", ()),
        ("On 1978-05-02.", "In 1978.", ("1978-05-02",)),
        ("1,000", "1", ("1,000",)),
        ("First, go left.", "Go left.", ()),
    ],
)
def test_a_number_is_looked_up_as_a_number(text, source, missing):
    assert absent(claims(text), source).numbers == missing


@example("1;000/0")
@example("1.0%")
@given(st.text(max_size=200) | st.text("0123456789 .,-/$%m", max_size=12))
def test_a_text_is_grounded_in_itself(text):
    missing = absent(claims(text), text)
    assert missing.numbers == () and missing.names == () and missing.quotes == ()


def _row(number: int, text: str, **changes) -> TraceRow:
    ids = np.asarray([7, *map(ord, text)], np.int32)
    row = TraceRow(f"r{number}", f"u{number}", "f", 0, "s", "t", ids, np.arange(len(ids)) > 0, teacher_tokens=10)
    return replace(row, **changes)


def _quality(rows, source=SOURCE):
    return quality(rows, lambda ids: "".join(map(chr, ids)), lambda digest: source)


def test_rows_are_counted_by_what_became_of_them():
    logprobs = np.log(np.full((3, TOP_K), 0.03, np.float32))
    rows = [
        _row(1, "It is 4718.", topk_logprobs=logprobs),
        _row(2, "It is 4718."),
        _row(3, "Ask Tobias Renn, or dial 999, or dial 4718.", truncated=True),
        _row(4, "", drop_reason="empty_answer"),
        _row(5, "", drop_reason="empty_answer"),
        _row(6, "", drop_reason="question_cut"),
    ]
    found = _quality(rows)
    assert found.kept == 3 and found.dropped == {"empty_answer": 2, "question_cut": 1}
    assert found.duplicates == 1 and found.duplicate_share == pytest.approx(1 / 3)
    assert found.truncated == 1 and found.truncated_share == pytest.approx(1 / 3)
    assert found.lengths == {"<= 16": 2, "<= 32": 0, "<= 64": 1}
    assert found.teacher_tokens == 60
    assert found.teacher_entropy == pytest.approx(entropy([0.03] * TOP_K + [0.4]))
    assert found.grounding is not None and found.ungrounded_rows == 1
    assert (found.grounding["numbers"].stated, found.grounding["numbers"].absent) == (4, 1)
    assert (found.grounding["names"].stated, found.grounding["names"].absent) == (1, 1)
    assert found.examples == [("r3", ["999", "Tobias Renn"])]


def test_nothing_kept_and_no_source_are_told_as_missing_not_as_zero():
    found = _quality([_row(1, "", drop_reason="empty_answer")])
    assert found.duplicate_share is None and found.teacher_entropy is None and found.grounding is None
    assert _quality([_row(1, "Tobias Renn")], source=None).grounding is None


@given(st.lists(st.floats(0.001, 1), min_size=TOP_K, max_size=TOP_K), st.floats(0.3, 1))
def test_entropy_takes_the_missing_mass_as_one_symbol(weights, mass):
    p = np.asarray(weights) / sum(weights) * mass
    got = entropies(np.log(p)[None].astype(np.float32))[0]
    assert got == pytest.approx(entropy([*p, max(0.0, 1 - p.sum())]), abs=1e-4)


def test_the_quality_is_shown_in_terminal_and_page():
    rows = [_row(1, "Ask Tobias Renn & <b>, or dial 999."), _row(2, "", drop_reason="question_cut")]
    found = asdict(_quality(rows))
    text = printed("ss", found)
    assert "1 traces kept; dropped: question_cut: 1" in text and "999, Tobias Renn" in text
    record = {"family": "ss", "induction_seed": 0, "seconds": 1.0, "quality": found}
    page = html_page("t", {}, [], [], [], run_tables([], [], []), [], induction=[record]).decode()
    assert "1 question_cut" in page and "999, Tobias Renn" in page
