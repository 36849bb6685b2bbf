"""Families driven by a scripted teacher, and the trace store."""

import dataclasses
import json
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_ray.errors import ConfigError, DataError, StorageError
from lpc_ray.induction import build_family
from lpc_ray.induction.base import run_units
from lpc_ray.induction.ss import PROMPTS, SEED_TYPES
from lpc_ray.records import TOP_K, Trace
from lpc_ray.storage import Store
from lpc_ray.traces.store import TraceStore, Written
from lpc_ray.traces.tokenise import Provenance, tokenise
from tests.scripted import TEXT, render, reply, units_of
from tests.tiny import rows

PROVENANCE = Provenance("ss", 0, "tiny", 64)


def test_self_study_asks_with_the_chunk_and_hides_it_from_the_student():
    sizes = {"min_chunk_tokens": 20, "max_chunk_tokens": 60}
    family = build_family("ss", {"num_chunks": 2, "conversations_per_chunk": 40, **sizes})
    calls = []

    def teacher(asks):
        calls.append(asks)
        return [reply("a question?" if not ask.top_k else "an answer") for ask in asks]

    units = units_of(family, "ss")
    finished = run_units(family, units, 0, teacher)
    assert [len(asks) for asks in calls] == [80, 80], "all pending asks go in one call"
    asked = {prompt for ask in calls[0] for prompt in [ask.messages[1]["content"]]}
    kinds = {kind for kind in SEED_TYPES for prompt in PROMPTS[kind] for one in asked if one[:40] == prompt[:40]}
    assert kinds == set(SEED_TYPES), "all five seed types are drawn"
    for ask in calls[1]:
        assert ask.messages[0]["role"] == "system" and "word" in ask.messages[0]["content"]
        assert ask.messages[1]["content"] == "a question?" and ask.top_k == TOP_K and ask.decoding.temperature == 0
    for unit in units:
        [trace] = finished[unit.id]
        assert [message["role"] for message in trace.messages] == ["user", "assistant"]
        assert "word" not in json.dumps(trace.messages)


@pytest.mark.parametrize(
    ("question", "answer", "reason"),
    [
        (reply(" \n"), reply("x"), "empty_question"),
        (reply("cut off", "length"), reply("x"), "question_cut"),
        (reply("fine?"), reply(" "), "empty_answer"),
    ],
)
def test_self_study_drops_what_cannot_be_trained_on_and_says_why(question, answer, reason):
    family = build_family("ss", {"num_chunks": 1, "conversations_per_chunk": 1})
    finished = run_units(
        family, units_of(family, "ss"), 0, lambda asks: [answer if ask.top_k else question for ask in asks]
    )
    [[trace]] = finished.values()
    assert trace.drop_reason == reason


def test_chunk_lengths_that_cannot_be_drawn_are_refused():
    with pytest.raises(ConfigError, match=r"min_chunk_tokens 512 .* max_chunk_tokens 60"):
        build_family("ss", {"max_chunk_tokens": 60})


def test_the_same_seed_draws_the_same_units_and_another_seed_others():
    family = build_family(
        "ss", {"num_chunks": 2, "conversations_per_chunk": 3, "max_chunk_tokens": 60, "min_chunk_tokens": 10}
    )
    first, again, other = units_of(family, "ss"), units_of(family, "ss"), units_of(family, "ss", seed=1)
    assert [unit.id for unit in first] == [unit.id for unit in again]
    assert not {unit.id for unit in first} & {unit.id for unit in other}
    assert len({unit.id for unit in first}) == 6


def test_raw_windows_put_together_are_the_document():
    family = build_family("raw", {"window_tokens": 33})
    traces = run_units(family, units_of(family, "raw"), 0, lambda asks: pytest.fail("raw asks nobody"))
    assert " ".join(trace.text for [trace] in traces.values()) == TEXT


def test_curated_traces_are_taken_as_they_are(tmp_path):
    conversation = [{"role": "user", "content": "Wo? 🐚"}, {"role": "assistant", "content": "Hier."}]
    (tmp_path / "faq.jsonl").write_text(json.dumps({"messages": conversation}) + "\n\n", encoding="utf-8")
    family = build_family("curated", {"paths": [str(tmp_path / "faq.jsonl")]})
    [[trace]] = run_units(family, units_of(family, "curated"), 0, lambda asks: []).values()
    assert list(trace.messages) == conversation


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        '{"messages": []}',
        '{"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]}',
    ]
    + ['{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": " "}]}']
    + [json.dumps({"messages": [{"role": role, "content": "x"} for role in ("user", "assistant", "assistant")]})],
)
def test_curated_traces_that_are_malformed_are_refused_with_their_place(tmp_path, line):
    (tmp_path / "faq.jsonl").write_text(line + "\n")
    family = build_family("curated", {"paths": [str(tmp_path / "faq.jsonl")]})
    with pytest.raises(DataError, match=r"faq\.jsonl"):
        units_of(family, "curated")


def test_the_engines_own_token_ids_are_the_targets():
    messages = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "an answer"})
    teacher = ({"role": "system", "content": "src"}, messages[0])
    trace = Trace(
        messages=messages, reply=reply("an answer"), teacher_messages=teacher, thinking=True, teacher_tokens=3
    )
    row = tokenise(trace, "u", 0, "s", PROVENANCE, render, None)
    prompt = render(messages[:1], True, thinking=True)
    assert row.token_ids.tolist() == [*prompt, 5, 5, 2]
    assert row.teacher_prompt.tolist() == render(teacher, True, thinking=True)
    assert row.is_target.tolist() == [False] * len(prompt) + [True] * 3
    assert row.topk_ids.shape == (3, TOP_K) and row.teacher_tokens == 3 and not row.truncated


def test_a_written_answer_is_trained_on_through_its_end_of_turn():
    messages = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"})
    row = tokenise(Trace(messages=messages), "u", 0, "s", PROVENANCE, render, None)
    assert row.token_ids[row.is_target].tolist() == [*map(ord, "yes"), 2]


def test_rows_that_cannot_be_trained_on_are_counted_by_reason():
    messages = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "x"})
    negative = dataclasses.replace(reply("x"), token_ids=(5, -1, 2))
    long = Trace(messages=({"role": "user", "content": "q" * 70}, messages[1]))
    reasons = [
        tokenise(trace, "u", 0, "s", PROVENANCE, render, None).drop_reason
        for trace in (Trace(messages=messages, reply=negative), long, Trace(drop_reason="empty_answer"))
    ]
    assert reasons == ["negative_token_id", "longer_than_window", "empty_answer"]


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 8), taught=st.booleans(), seed=st.integers(0, 99), parts=st.integers(1, 3))
def test_what_the_trace_store_holds_comes_back_equal(count, taught, seed, parts):
    written = rows(count, seed=seed, taught=taught)
    with tempfile.TemporaryDirectory() as folder:
        store = TraceStore(Store(folder))
        for start in range(parts):
            store.append(written[start::parts])
        got = store.rows()
        assert store.units() == {row.unit for row in written}
        assert store.summary()["targets"] == sum(int(row.is_target.sum()) for row in written)
    for ours, theirs in zip(got, written, strict=True):
        for field in dataclasses.fields(ours):
            np.testing.assert_array_equal(getattr(ours, field.name), getattr(theirs, field.name))


def test_a_budget_of_teacher_tokens_takes_whole_units_and_pays_for_dropped_rows(tmp_path):
    written = [
        dataclasses.replace(row, id=f"u{number // 2}-{number % 2}", unit=f"u{number // 2}", teacher_tokens=10)
        for number, row in enumerate(rows(8))
    ]
    written[1] = dataclasses.replace(written[1], drop_reason="empty_answer")
    store = TraceStore(Store(str(tmp_path)))
    store.append(written)
    assert [row.id for row in store.rows(59)] == ["u0-0", "u1-0", "u1-1"]
    counts = store.summary(59)
    assert (counts["rows"], counts["teacher_tokens"], counts["dropped"]) == (3, 40, {"empty_answer": 1})
    assert len(store.rows(80)) == len(store.rows()) == 7 and store.rows(19) == []
    assert store.digest(80) == store.digest() != store.digest(59)


def test_a_batch_written_twice_is_there_once_and_a_real_duplicate_is_refused(tmp_path):
    store = TraceStore(Store(str(tmp_path)))
    store.append(rows(3))
    store.append(rows(3))
    assert len(store.rows()) == 3
    store.append(rows(2))
    with pytest.raises(DataError, match="occurs twice"):
        store.rows()


def test_what_batches_report_must_be_what_the_store_holds(tmp_path):
    """Two nodes that each write a folder of their own: rows of the second never reach the first's."""
    made = rows(6)
    here, there = TraceStore(Store(str(tmp_path / "a"))), TraceStore(Store(str(tmp_path / "b")))
    here.append(made[:4])
    there.append(made[4:])
    units = sorted({row.unit for row in made})
    reported = {
        unit: Written(sum(row.unit == unit for row in made), f"node 10.77.0.{1 + (unit in there.units())}")
        for unit in units
    }
    gone = len(there.units())
    with pytest.raises(
        StorageError, match=rf"got 4 rows, wanted the 6 .* {gone} units are missing, 0 .* node 10\.77\.0\.2\."
    ):
        here.check_holds(units, reported)
    here.append(made[4:])
    here.check_holds(units, reported)
    with pytest.raises(StorageError, match="1 units are missing, 0 have other rows, and no batch reports them"):
        here.check_holds([*units, "another"], reported)
    more = {**reported, units[0]: dataclasses.replace(reported[units[0]], rows=9)}
    with pytest.raises(StorageError, match="0 units are missing, 1 have other rows, written on node 10"):
        here.check_holds(units, more)


def test_a_part_is_read_once_for_its_units_and_new_ones_are_seen(tmp_path, monkeypatch):
    store, other, read = TraceStore(Store(str(tmp_path))), TraceStore(Store(str(tmp_path))), []
    whole = Store.read_bytes
    monkeypatch.setattr(Store, "read_bytes", lambda self, name: read.append(name) or whole(self, name))
    made = rows(6)
    for start in range(3):
        other.append(made[2 * start : 2 * start + 2])
        assert store.units() == {row.unit for row in made[: 2 * start + 2]}
    assert len(read) == 3


def test_a_torn_part_is_refused_by_name(tmp_path):
    store = TraceStore(Store(str(tmp_path)))
    store.append(rows(3))
    [part] = tmp_path.glob("*.parquet")
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(DataError, match=part.name):
        store.rows()


def test_a_store_that_refuses_leaves_no_part(tmp_path):
    (tmp_path / "traces").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write"):
        TraceStore(Store(str(tmp_path / "traces"))).append(rows(1))
