"""Preview and inducer with the real tokenizer and template and a scripted teacher."""

import dataclasses
import json

import pytest

from lpc_ray.errors import ConfigError
from lpc_ray.induction.base import plan_units
from lpc_ray.induction.study import user
from lpc_ray.model.chat import ChatRenderer, PromptFormat
from lpc_ray.model.embedded import resolve_model
from lpc_ray.records import Document, digest_of
from lpc_ray.storage import Store
from lpc_ray.traces.inducer import Inducer, InductionTask
from lpc_ray.traces.preview import preview, printed, sampled
from lpc_ray.traces.store import TraceStore
from tests.scripted import Teacher, reply

TEXT = " ".join(f"The gate number {number} opens at dawn." for number in range(300))
DOCUMENT = Document("d", TEXT, digest_of(TEXT))
SETTINGS = {"num_chunks": 5, "conversations_per_chunk": 4, "min_chunk_tokens": 100, "max_chunk_tokens": 200}


def _inducer(family: str = "ss", **settings) -> Inducer:
    task = InductionTask(family, {**SETTINGS, **settings}, 0, "smollm2-135m-instruct", None, PromptFormat(""), 2048)
    return Inducer(task)


def _units(inducer: Inducer):
    task = inducer.task
    return plan_units(inducer.family, task.family, [DOCUMENT], inducer.text.spans, "Gates.", task.seed)


def test_a_preview_takes_one_unit_of_a_few_chunks_and_scales_their_cost():
    inducer = _inducer()
    units = _units(inducer)
    teacher = Teacher(lambda ask: reply("Gate 5 at dawn.") if ask.top_k else reply("Which gate?"))
    shown = preview(inducer, units, teacher, 3)
    assert len({unit.chunk.digest for unit in shown.units}) == 3 and set(shown.units) <= set(units)
    assert shown.measured.asks == len(teacher.asked) == 6 and shown.measured.teacher_tokens == 18
    assert shown.whole.units == 20 and shown.whole.teacher_tokens == 120 and shown.whole.kept_rows == 20
    assert shown.whole.seconds == pytest.approx(shown.measured.seconds * 20 / 3)
    text = printed(shown, inducer)
    assert (
        text.count("-- ask, system\n") == 3
        and text.count("-- ask, system, as above") == 3
        and text.count("Which gate?") >= 6
        and "estimated 20 units" in text
    )


def test_a_preview_of_more_chunks_than_there_are_takes_each_once():
    units = _units(_inducer())
    assert [unit.index for unit in sampled(units, 99)] == [0] * 5


def test_a_preview_shows_why_a_row_was_dropped():
    inducer = _inducer()
    shown = preview(inducer, _units(inducer), Teacher(lambda ask: reply("")), 1)
    assert "trace: dropped, empty_question" in printed(shown, inducer) and shown.whole.dropped_rows == 20


def test_what_a_source_or_a_teacher_writes_does_not_steer_the_terminal():
    inducer = _inducer()
    steering = "Gate\x1b[2J 5\r at\u202e dawn"
    shown = preview(inducer, _units(inducer), Teacher(lambda ask: reply(steering)), 1)
    text = printed(shown, inducer)
    assert r"Gate\u001b[2J 5\r at\u202e dawn" in text and not set(text) & set("\x1b\r\u202e")


def test_the_stored_teacher_prompt_is_what_the_engine_was_asked(tmp_path):
    inducer = _inducer()
    teacher = Teacher(lambda ask: reply("Gate 5.") if ask.top_k else reply("Which gate?"))
    store = TraceStore(Store(str(tmp_path)))
    store.append(inducer.rows(_units(inducer)[:3], teacher))
    for row, ask in zip(store.rows(), [ask for ask in teacher.asked if ask.top_k], strict=False):
        prompt = inducer.text.decode(row.teacher_prompt.tolist())
        assert "Which gate?" in prompt and prompt.endswith("<|im_start|>assistant\n") and "The gate number" in prompt
        assert "The gate number" not in inducer.text.decode(row.token_ids.tolist())
        assert ask.messages[0]["content"][:40] in prompt


def test_an_ask_without_a_system_message_is_opened_as_the_students_are(tmp_path):
    (tmp_path / "general.jsonl").write_text('{"prompt": "Hello"}')
    task = InductionTask(
        "general",
        {"paths": [str(tmp_path / "general.jsonl")]},
        0,
        "smollm2-135m-instruct",
        None,
        PromptFormat("Be brief."),
        512,
    )
    inducer = Inducer(task)
    teacher = Teacher(lambda ask: reply("Hi"))
    [row] = inducer.rows(_units(inducer), teacher)
    assert [message["content"] for message in teacher.asked[0].messages] == ["Be brief.", "Hello"]
    assert row.teacher_prompt.tolist() == row.token_ids[~row.is_target].tolist()


def test_an_ask_that_is_too_long_drops_its_unit_and_the_teacher_never_sees_it(tmp_path):
    prompts = ["Hello", "word" * 90, "Hello again", "word" * 400]
    (tmp_path / "general.jsonl").write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in prompts))
    settings = {"paths": [str(tmp_path / "general.jsonl")], "max_answer_tokens": 28}
    inducer = Inducer(InductionTask("general", settings, 0, "smollm2-135m-instruct", None, PromptFormat(""), 128))
    length = len(ChatRenderer(resolve_model("smollm2-135m-instruct"), None, PromptFormat(""))([user(prompts[1])], True))
    exact = dataclasses.replace(inducer.task, context_tokens=length + 28)
    for task, dropped in ((inducer.task, [1, 3]), (exact, [3])):
        teacher = Teacher(lambda ask: reply("Hi"))
        rows = Inducer(task).rows(_units(inducer), teacher)
        assert [row.drop_reason for row in rows] == ["ask_too_long" if n in dropped else None for n in range(4)]
        asked = [ask.messages[-1]["content"] for ask in teacher.asked]
        assert asked == [prompt for n, prompt in enumerate(prompts) if n not in dropped]
    shown = preview(inducer, _units(inducer), Teacher(lambda ask: reply("Hi")), 4)
    assert printed(shown, inducer).count("not asked: too long for the context") == 2


def test_thinking_with_a_template_that_has_no_switch_is_refused():
    inducer = _inducer(thinking_probability=1.0)
    with pytest.raises(ConfigError, match="enable_thinking"):
        inducer.rows(_units(inducer)[:1], Teacher(lambda ask: reply("x")))
