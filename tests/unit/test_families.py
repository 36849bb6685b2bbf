"""Every family driven by a scripted teacher, good and bad."""

import dataclasses
import json
import math

import pytest

from lpc_ray.errors import ConfigError, DataError
from lpc_ray.induction import build_family, family_names
from lpc_ray.induction.ar_ta import entries_of
from lpc_ray.induction.base import run_units
from lpc_ray.induction.bo import Candidate
from lpc_ray.records import TOP_K, Reply
from lpc_ray.sources import gsm8k
from lpc_ray.verification.scoring import short_answer
from tests.scripted import TEXT, Teacher, reply, units_of

CHUNKS = {"num_chunks": 1, "conversations_per_chunk": 1, "min_chunk_tokens": 20, "max_chunk_tokens": 60}
STUDIES = {
    "ss": {"max_question_tokens": 40, "turns": 2},
    "ar_ta": {"max_list_tokens": 40},
    "ar_ts": {"max_list_tokens": 40, "task": "Recite the words."},
    "ar": {},
    "r": {"max_question_tokens": 40},
    "bo": {"max_question_tokens": 40},
    "csb": {"max_question_tokens": 40, "max_answer_words": 12},
}
LIST = "Sure.\n## Say it aloud\nRead each word.\n\n## Draw a map\nPlace the words.\n\n## Say it aloud\nRead each word."


def study(name: str, **settings):
    return build_family(name, {**CHUNKS, **STUDIES[name], **settings})


def traces_of(name: str, teacher, **settings):
    family = study(name, **settings)
    return [trace for found in run_units(family, units_of(family, name), 0, teacher).values() for trace in found]


def good(ask):
    """A teacher that does as it is told, whatever the family."""
    request = ask.messages[-1]["content"]
    if "## name of the strategy" in request:
        return reply(f"1. Which word?\n=====\n{LIST}" if "=====" in request else LIST)
    if "pass or fail" in request:
        return reply("Pass. It keeps to it.")
    return reply("an answer" if ask.top_k else "a question?")


@pytest.mark.parametrize("name", STUDIES)
def test_the_student_never_sees_the_source_and_the_teacher_always_does(name):
    teacher = Teacher(good)
    traces = traces_of(name, teacher)
    kept = [trace for trace in traces if trace.drop_reason is None]
    assert kept
    for ask in teacher.asked:
        assert "word" in ask.messages[0]["content"] and ask.messages[0]["role"] == "system"
    for trace in kept:
        assert trace.messages[0]["role"] == "user" and trace.messages[-1]["role"] == "assistant"
        assert not any(word in json.dumps(trace.messages) for word in TEXT.split())
        seen = len(trace.messages) - 1
        assert trace.teacher_messages[-seen:] == trace.messages[:-1] and "word" in trace.teacher_messages[0]["content"]
        assert trace.reply is not None and trace.reply.topk_ids.shape[1] == TOP_K
    assert sum(trace.teacher_tokens for trace in traces) == 3 * len(teacher.asked), "every generated token is paid for"


TEN_TIMES = " ".join(["word"] * 400)
BAD_REPLIES = {
    "empty": reply("", tokens=1),
    "blank": reply(" \n\n"),
    "cut": reply("## Half a strat", "length"),
    "malformed": reply("##\n1.\n- \n****\n=====\n"),
    "ten times too long": reply(TEN_TIMES, tokens=10_240),
    "braces": reply("{count} {} {0} ## {strategy}"),
    "not asked": Reply.too_long(5000, TOP_K),
}


@pytest.mark.parametrize("bad", BAD_REPLIES)
@pytest.mark.parametrize("name", STUDIES)
def test_a_teacher_that_always_replies_badly_leaves_only_counted_rows_or_whole_traces(name, bad):
    traces = traces_of(name, Teacher(lambda ask: BAD_REPLIES[bad]))
    assert traces
    for trace in traces:
        assert (trace.drop_reason is None) == bool(trace.messages)
    if bad in ("empty", "blank"):
        assert all(trace.drop_reason for trace in traces)
    if bad == "not asked":
        assert [trace.drop_reason for trace in traces] == ["ask_too_long"]


@pytest.mark.parametrize("bad", BAD_REPLIES)
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("name", ["ss", "ar_ta", "ar_ts", "r", "bo", "csb"])
def test_one_bad_reply_on_the_way_is_survived(name, bad, at):
    seen = []

    def script(ask):
        seen.append(ask)
        return BAD_REPLIES[bad] if len(seen) == at + 1 else good(ask)

    traces = traces_of(name, Teacher(script))
    assert traces and all((trace.drop_reason is None) == bool(trace.messages) for trace in traces)
    if bad == "not asked" and len(seen) > at:
        reasons = [trace.drop_reason for trace in traces if trace.drop_reason != "duplicate_strategy"]
        assert reasons.count("ask_too_long") == 1 and set(reasons) <= {None, "ask_too_long"}


@pytest.mark.parametrize(
    ("name", "first", "reason"),
    [
        ("ss", reply(TEN_TIMES, tokens=400), "question_too_long"),
        ("r", reply("half a ta", "length"), "task_cut"),
        ("r", reply(" "), "empty_task"),
        ("ar_ta", reply("I would read it again."), "no_strategy"),
        ("ar_ta", reply("## Only half", "length"), "strategy_cut"),
        ("ar_ta", reply(f"## {TEN_TIMES}"), "strategy_too_long"),
        ("ar_ts", reply("1. Which word?\n2. Why?"), "no_strategy"),
        ("ar_ts", reply("## Questions\n1. Which word?\n2. Why?"), "no_strategy"),
        ("csb", reply("", tokens=1), "empty_question"),
    ],
)
def test_a_first_reply_that_leads_nowhere_is_one_row_with_its_reason(name, first, reason):
    [trace] = traces_of(name, Teacher([first]))
    assert trace.drop_reason == reason


@pytest.mark.parametrize("name", ["ar_ta", "ar_ts"])
def test_stage_two_sees_the_source_and_one_strategy_and_nothing_of_another(name):
    teacher = Teacher(lambda ask: good(ask) if not ask.top_k else reply(f"RESULT {ask.messages[1]['content'][-9:]}"))
    traces = traces_of(name, teacher)
    [listing, *carried_out] = teacher.asked
    assert listing.top_k == 0 and len(carried_out) == 2
    for ask in carried_out:
        said = json.dumps(ask.messages)
        assert len(ask.messages) == 2 and "RESULT" not in said and "Which word?" not in said
        assert ("Say it aloud" in said) != ("Draw a map" in said)
    assert [trace.drop_reason for trace in traces] == [None, None, "duplicate_strategy"]
    assert "Say it aloud\nRead each word." in traces[0].messages[0]["content"]


@pytest.mark.parametrize(
    "listed", ["## A question of the exam\nWhich?\n=====\n## Only this\nDo it.", "1. the exam?\n## Only this\nDo it."]
)
def test_task_specific_reading_asks_with_the_task_and_takes_what_follows_the_delimiter(listed):
    teacher = Teacher(lambda ask: reply("done") if ask.top_k else reply(listed))
    [trace] = traces_of("ar_ts", teacher, task="Name the words in {order}.")
    assert "Name the words in {order}." in teacher.asked[0].messages[1]["content"]
    assert "Only this" in trace.messages[0]["content"] and "exam" not in trace.messages[0]["content"]


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("## A\nx\n## B", ["A\nx", "B"]),
        ("Here:\n1. A\n2) B\n   - part of B", ["A", "B\n   - part of B"]),
        ("- A\n* B", ["A", "B"]),
        ("### 1. A\n### 2. B", ["A", "B"]),
        ("### A\n- not an entry", ["A\n- not an entry"]),
        ("# Title\nplain text", []),
        ("**1. A**\ndo a\n**2.** B", ["A**\ndo a", "B"]),
        ("• A\n• B", ["A", "B"]),
        ("## Strategies\n1. A\n2. B", ["A", "B"]),
        ("```markdown\n## A\nx\n## B\n```", ["A\nx", "B"]),
        ("##\n## ...\n", []),
    ],
)
def test_a_list_is_headings_else_numbers_else_bullets(text, entries):
    assert entries_of(text) == entries


def test_a_list_ten_times_too_long_is_read_up_to_the_number_asked_for():
    many = "\n".join(f"## strategy {number}\ndo {number}" for number in range(80))
    traces = traces_of("ar_ta", Teacher(lambda ask: reply("done") if ask.top_k else reply(many)), max_strategies=8)
    assert len(traces) == 8 and not any(trace.drop_reason for trace in traces)


def test_self_study_turns_ask_on_and_every_answer_is_a_trace():
    questions = iter(["q1", "q2", "q3"])
    answers = iter(["a1", "a2", "a3"])
    teacher = Teacher(lambda ask: reply(next(answers)) if ask.top_k else reply(next(questions)))
    traces = traces_of("ss", teacher, turns=3)
    contents = [[message["content"] for message in trace.messages] for trace in traces]
    assert contents == [["q1", "a1"], ["q1", "a1", "q2", "a2"], ["q1", "a1", "q2", "a2", "q3", "a3"]]
    assert "a1" in teacher.asked[2].messages[-1]["content"], "the asker is told the answer before it asks on"


def test_a_turn_that_fails_keeps_the_turns_before_it():
    traces = traces_of("ss", Teacher([reply("q1"), reply("a1"), reply("")]), turns=2)
    assert [trace.drop_reason for trace in traces] == [None, "empty_question"]


def test_thinking_is_switched_with_its_probability_and_left_alone_without():
    def switches(probability):
        settings = {"conversations_per_chunk": 200, "turns": 1, "thinking_probability": probability}
        teacher = Teacher(good)
        traces = traces_of("ss", teacher, **settings)
        asked = [ask.thinking for ask in teacher.asked if ask.top_k]
        assert asked == [trace.thinking for trace in traces]
        return asked

    assert set(switches(None)) == {None} and set(switches(1.0)) == {True}
    assert 0.2 < sum(switches(0.3)) / 200 < 0.4


THOUGHT = "<think>\nThe <user> wants\n## a list?\n1. Fail.\n</think>\n\n"


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", STUDIES)
def test_what_a_teacher_thinks_becomes_no_question_no_strategy_and_no_verdict(name, opened):
    """A teacher that thinks before every reply: no user's turn holds its thinking, and nothing else changes by it."""

    def thinks(ask):
        found = good(ask)
        thought = THOUGHT.removeprefix("<think>\n") if opened else THOUGHT
        return dataclasses.replace(found, text=thought + found.text, is_thinking=opened)

    teacher, plain = Teacher(thinks), Teacher(good)
    traces, wanted = traces_of(name, teacher), traces_of(name, plain)
    for asks in (teacher.asked, [*traces]):
        said = [message["content"] for one in asks for message in one.messages if message["role"] == "user"]
        assert said and not any("wants" in content for content in said)
    assert [trace.drop_reason for trace in traces] == [trace.drop_reason for trace in wanted]


def test_best_of_keeps_the_candidate_with_the_highest_recorded_score():
    scores = {"one": -2.0, "two": -0.5, "three": -0.7}
    candidates = [reply(name, logprob=score) for name, score in scores.items()] + [reply(" ", logprob=0.0)]
    teacher = Teacher([reply("q?"), *candidates])
    [trace] = traces_of("bo", teacher, num_candidates=4)
    assert trace.messages[-1]["content"] == "two"
    assert trace.scores[:3] == pytest.approx([-2.0, -0.5, -0.7]) and math.isnan(trace.scores[3])
    assert len({ask.decoding.seed for ask in teacher.asked[1:]}) == 4 and teacher.asked[1].decoding.temperature > 0


def longest(candidate: Candidate) -> float:
    return len(candidate.reply.text)


def test_a_scorer_is_any_callable_and_may_refuse_all(tmp_path):
    replies = [reply("q?"), reply("a"), reply("abc"), reply("ab")]
    [trace] = traces_of("bo", Teacher(replies), num_candidates=3, scorer=longest)
    assert trace.messages[-1]["content"] == "abc" and trace.scores == (1, 3, 2)
    [trace] = traces_of("bo", Teacher(replies), num_candidates=3, scorer=longest, min_score=4)
    assert trace.drop_reason == "best_score_too_low" and trace.scores == (1, 3, 2)
    [trace] = traces_of("bo", Teacher([reply("q?")] + 3 * [reply("")]), num_candidates=3)
    assert trace.drop_reason == "no_usable_candidate"
    with pytest.raises(ConfigError, match="scorer"):
        study("bo", scorer="lpc_ray.no_such.scorer")


def test_a_verifier_scores_tasks_with_known_answers(tmp_path):
    (tmp_path / "tasks.jsonl").write_text(
        '{"question": "2 + 3?", "answer": "It is 2+3 = <<2+3=5>>5.\\n#### 5"}\n'
        '{"question": "Who?", "answers": ["Ann", "Anna"]}\n'
    )
    said = {gsm8k.prompt("2 + 3?"): ["6", "it is 5", "55"], "Who?": ["Bob", "Eve", "Anna it was"]}
    teacher = Teacher(lambda ask: reply(said[ask.messages[1]["content"]].pop(0)))
    settings = {"tasks": (str(tmp_path / "tasks.jsonl"),), "conversations_per_chunk": 5, "num_candidates": 3}
    traces = traces_of("bo", teacher, scorer=short_answer, **settings)
    assert [trace.messages[-1]["content"] for trace in traces] == ["it is 5", "Anna it was"]
    assert [trace.scores for trace in traces] == [(0, 1, 0), (0, 0, 1)]
    assert all(ask.messages[0]["content"].count("word") >= 20 for ask in teacher.asked), "the source stands before it"


@pytest.mark.parametrize(
    ("answer", "check", "reason"),
    [
        (reply("short"), reply("Fail: it names nobody."), "self_check_failed"),
        (reply("short"), reply("It does pass, I think."), "self_check_missing"),
        (reply("short"), reply(""), "self_check_missing"),
        (reply("one two three four five six seven eight nine ten eleven twelve 13"), None, "over_bound"),
        (reply("cut", "length"), None, "over_bound"),
        (reply("  "), None, "empty_answer"),
    ],
)
def test_a_conversation_that_fails_its_contract_is_one_dropped_row(answer, check, reason):
    replies = [reply("q?"), answer] + ([check] if check else [])
    [trace] = traces_of("csb", Teacher(replies))
    assert trace.drop_reason == reason


def test_a_contract_is_stated_kept_and_checked():
    answer, check = traces_of("csb", Teacher([reply("q?"), reply("short"), reply("**pass**, it does.")]))
    assert answer.messages[0]["content"].startswith("q?\n\nOutput contract: ") and "12 words" in str(answer.messages[0])
    assert [message["content"] for message in check.messages[:2]] == [answer.messages[0]["content"], "short"]
    assert check.messages[-1]["content"] == "**pass**, it does."


def test_gsm8k_questions_become_reasoning_traces_without_calculator_marks(tmp_path):
    line = {"question": "How many?", "answer": "48/2 = <<48/2=24>>24 clips.\n#### 24"}
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(line)}\n" * 3)
    family = build_family("curated", {"paths": [str(tmp_path / "train.jsonl")], "max_conversations": 2})
    found = run_units(family, units_of(family, "curated"), 0, Teacher([]))
    assert len(found) == 2
    for [trace] in found.values():
        assert [message["content"] for message in trace.messages] == [
            gsm8k.prompt("How many?"),
            "48/2 = 24 clips.\n#### 24",
        ]


def test_general_prompts_are_answered_by_the_model_as_it_is(tmp_path):
    lines = [
        {"prompt": "Hello"},
        {"question": "Why?", "answer": "not used"},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "not used"}]},
    ]
    (tmp_path / "general.jsonl").write_text("\n".join(map(json.dumps, lines)))
    family = build_family("general", {"paths": [str(tmp_path / "general.jsonl")]})
    teacher = Teacher(good)
    found = run_units(family, units_of(family, "general"), 0, teacher)
    assert [[message["content"] for message in ask.messages] for ask in teacher.asked] == [["Hello"], ["Why?"], ["Hi"]]
    for [trace] in found.values():
        assert trace.teacher_messages == trace.messages[:-1] and trace.messages[-1]["content"] == "an answer"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "q"}', "'answer' is missing"),
        ('{"question": "q", "answer": "no final line"}', "####"),
        ('{"question": "q", "answers": []}', "'answers'"),
        ("[]", "wanted an object"),
    ],
)
def test_tasks_that_are_malformed_are_refused_with_their_place(tmp_path, line, message):
    (tmp_path / "tasks.jsonl").write_text(f"\n{line}\n")
    with pytest.raises(DataError, match=rf"tasks\.jsonl line 2: .*{message}"):
        units_of(study("bo", tasks=(str(tmp_path / "tasks.jsonl"),)), "bo")


def test_settings_newer_than_their_family_leave_ids_alone_at_their_defaults():
    plain = [unit.id for unit in units_of(study("ss", turns=1), "ss")]
    assert plain == [unit.id for unit in units_of(study("ss", turns=1, thinking_probability=None), "ss")]
    assert plain != [unit.id for unit in units_of(study("ss", turns=2), "ss")]


def test_every_family_is_tried_here_or_beside():
    assert set(family_names()) == {*STUDIES, "curated", "general", "raw"}
