"""Messages → token ids: those of transformers where no text names a control token, under templates of every manner."""

import json
from datetime import date, datetime
from pathlib import Path

import pytest
import transformers.utils.chat_template_utils as oracle
from transformers import AutoTokenizer

from lpc_ray.errors import ConfigError, DataError
from lpc_ray.model.chat import ChatRenderer, PromptFormat
from lpc_ray.model.embedded import EMBEDDED_MODEL, fetch_embedded_model
from lpc_ray.model.tokenizer import TextTokenizer
from tests.chats import TEMPLATES, assistant, change, save_chat_model, system, user

DAY = date(2031, 3, 7)
TALKS = {
    "one turn": [user("What is it?")],
    "three turns": [user("a 1\n"), assistant("the\n\nanswer 🐚 é"), user("  and\tthen ")],
}
WITH_SYSTEM = [system("Be brief."), user("What is it?")]
REFUSING = {"gemma", "mistral", "phi3"}


@pytest.fixture(autouse=True)
def the_day(monkeypatch):
    """Where transformers asks for today's date it is DAY."""

    class Fixed(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(DAY.year, DAY.month, DAY.day)

    monkeypatch.setattr(oracle, "datetime", Fixed)


@pytest.fixture
def model(tmp_path):
    def made(template: str | None) -> str:
        return save_chat_model(tmp_path / f"model{len(list(tmp_path.iterdir()))}", template)

    return made


def _wanted(model: str, messages, add_generation_prompt: bool, **switches) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=add_generation_prompt, return_dict=False, **switches
    )


def _text(model: str, ids: list[int]) -> str:
    return AutoTokenizer.from_pretrained(model).decode(ids)


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_conversation_is_what_transformers_makes_of_it_with_and_without_transformers(model, template, talk, opens):
    folder, prompt = model(template), PromptFormat(date=DAY)
    wanted = _wanted(folder, TALKS[talk], opens)
    assert ChatRenderer(folder, None, prompt)(TALKS[talk], opens) == wanted
    assert TextTokenizer(folder).chat(prompt)(TALKS[talk], opens) == wanted


@pytest.mark.parametrize("messages", [*TALKS.values(), WITH_SYSTEM, [system(""), user("x")]])
def test_the_default_models_own_template_is_rendered_as_transformers_does(messages):
    folder = str(fetch_embedded_model())
    wanted = _wanted(folder, messages, True)
    assert TextTokenizer(EMBEDDED_MODEL).chat(PromptFormat())(messages, True) == wanted
    assert ChatRenderer(folder)(messages, True) == wanted


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_system_message_stands_where_the_template_puts_it_else_before_the_users_words(model, template):
    folder = model(template)
    folded = [user("Be brief.\n\nWhat is it?")]
    wanted = _wanted(folder, folded if template in REFUSING else WITH_SYSTEM, True)
    assert ChatRenderer(folder, None, PromptFormat(date=DAY))(WITH_SYSTEM, True) == wanted
    assert ChatRenderer(folder, None, PromptFormat("Be brief.", date=DAY))(WITH_SYSTEM[1:], True) == wanted


@pytest.mark.parametrize("template", ["gemma", "mistral", "phi3"])
def test_an_empty_system_message_that_a_template_refuses_leaves_nothing_behind(model, template):
    folder = model(template)
    wanted = _wanted(folder, [user("x")], True)
    assert ChatRenderer(folder, None, PromptFormat(""))([user("x")], True) == wanted


def test_a_system_message_between_turns_joins_the_users_turn_beside_it(model):
    chat = ChatRenderer(model("mistral"))
    talk = [user("a"), system("S1"), assistant("b"), system("S2"), user("c"), system("S3")]
    wanted = [user("a\n\nS1"), assistant("b"), user("S2\n\nc\n\nS3")]
    assert chat(talk, True) == chat(wanted, True)


@pytest.mark.parametrize(
    ("template", "day", "wanted"),
    [
        ("llama3", date(2026, 12, 1), "Today Date: 01 Dec 2026"),
        ("llama3", None, "Today Date: 26 Jul 2024"),
        ("marked", date(2026, 12, 1), "It is Tuesday, 1 December 2026, 100%."),
    ],
)
def test_a_day_is_written_as_the_recipe_has_it_on_every_day(model, template, day, wanted):
    folder = model(template)
    prompt = PromptFormat() if day is None else PromptFormat(date=day)
    assert wanted in _text(folder, ChatRenderer(folder, None, prompt)([user("x")], True))


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_is_switched_by_the_recipe_and_by_an_ask(model, thinking):
    for template, variable in (("qwen3", "enable_thinking"), ("hybrid", "thinking")):
        folder = model(template)
        wanted = _wanted(folder, [user("x")], True, **{variable: thinking})
        assert ChatRenderer(folder, None, PromptFormat(thinking=thinking))([user("x")], True) == wanted
        assert ChatRenderer(folder, None, PromptFormat(thinking=not thinking))([user("x")], True, thinking) == wanted


@pytest.mark.parametrize("template", ["chatml", "r1", "gemma"])
def test_thinking_that_no_template_switches_is_refused_by_name(model, template):
    folder = model(template)
    for make in (lambda prompt: ChatRenderer(folder, None, prompt), TextTokenizer(folder).chat):
        with pytest.raises(ConfigError, match=r"^recipe\.prompt\.thinking: .* has no switch"):
            make(PromptFormat(thinking=False))
    with pytest.raises(ConfigError, match=r"^thinking_probability: "):
        ChatRenderer(folder)([user("x")], True, thinking=True)


@pytest.mark.parametrize(
    "template", ["{{ 1 +", "{% for m in messages %}", "{{ raise_exception('no\\nway') }}", "{{ messages[3].content }}"]
)
def test_a_template_that_cannot_be_used_is_one_line(model, template):
    folder = model(template)
    for make in (ChatRenderer, lambda model: TextTokenizer(model).chat(PromptFormat())):
        with pytest.raises((ConfigError, DataError)) as caught:
            make(folder)
        assert "\n" not in str(caught.value) and "chat template" in str(caught.value)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}",
            "ends the assistant's turn with '",
        ),
        (
            "<s>{% for m in messages %}[{{ m.content }}]{% endfor %}",
            r"ends the assistant's turn with '\]', wanted a control",
        ),
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content + '</s>' }}{% endfor %}",
            "leaves out what the assistant",
        ),
    ],
)
def test_a_template_that_marks_no_end_of_a_turn_is_refused(model, template, message):
    with pytest.raises(ConfigError, match=message):
        ChatRenderer(model(template)).check_end()


@pytest.mark.parametrize("template", TEMPLATES)
def test_published_templates_mark_the_end_of_a_turn(model, template):
    ChatRenderer(model(template)).check_end()


def test_a_model_without_a_template_is_refused_by_name(model):
    folder = model(None)
    for make in (ChatRenderer, lambda model: TextTokenizer(model).chat(PromptFormat())):
        with pytest.raises(
            ConfigError, match="got a tokenizer without a chat template, wanted a model that is tuned to chat"
        ):
            make(folder)


ANSWERS = {
    # (template, thinking, what was written) → what follows the prompt's last words, which are given too
    ("chatml", None, "yes"): ("assistant\n", "yes<|im_end|>"),
    ("chatml", None, "\nyes\n"): ("assistant\n", "\nyes\n<|im_end|>"),
    ("marked", None, "yes"): ("assistant\n", "yes<|im_end|>"),
    ("gemma", None, " yes"): ("model\n", "yes<end_of_turn>"),
    ("mistral", None, "yes"): (" [/INST]", " yes</s>"),
    ("phi3", None, "yes"): ("<|im_start|>\n", "yes<end_of_turn>"),
    ("llama3", None, "yes"): ("\n\n", "yes<|eot_id|>"),
    ("qwen3", None, "yes"): ("assistant\n", "<think>\n\n</think>\n\nyes<|im_end|>"),
    ("qwen3", None, "<think>\nso\n</think>\n\nyes"): ("assistant\n", "<think>\nso\n</think>\n\nyes<|im_end|>"),
    ("qwen3", False, "yes"): ("<think>\n\n</think>\n\n", "yes<|im_end|>"),
    ("qwen3_plain", None, "yes"): ("assistant\n", "<think>\n\n</think>\n\nyes<|im_end|>"),
    ("qwen3_plain", None, "<think>so</think>yes"): ("assistant\n", "<think>so</think>yes<|im_end|>"),
    ("r1", None, "yes"): ("<think>\n", "\n</think>\n\nyes</s>"),
    ("r1", None, "<think>\nso\n</think>\n\nyes"): ("<think>\n", "so\n</think>\n\nyes</s>"),
    ("r1", None, "so\n</think>\n\nyes"): ("<think>\n", "so\n</think>\n\nyes</s>"),
    ("hybrid", True, "<think>so</think>yes"): ("<think>\n", "so\n</think>\n\nyes<|im_end|>"),
    ("hybrid", False, "yes"): ("<think></think>\n", "yes<|im_end|>"),
}  # fmt: skip


@pytest.mark.parametrize(("case", "wanted"), ANSWERS.items())
def test_a_written_answer_is_what_the_model_would_generate_through_its_end_of_turn(model, case, wanted):
    template, thinking, content = case
    folder = model(template)
    chat = ChatRenderer(folder, None, PromptFormat(thinking=thinking))
    written = chat.written([user("q"), assistant(content)])
    assert written.defect is None and written.prompt == chat([user("q")], True)
    opening, answer = wanted
    assert _text(folder, written.prompt).endswith(opening) and _text(folder, written.answer) == answer


def test_an_answer_that_cannot_follow_its_prompt_has_a_reason(model):
    off = ChatRenderer(model("qwen3"), None, PromptFormat(thinking=False))
    written = off.written([user("q"), assistant("<think>\nso\n</think>\n\nyes")])
    assert written.defect == "reasoning_without_thinking"
    rewriting = ChatRenderer(model("{% for m in messages %}{{ loop.revindex ~ m.content }}{% endfor %}"))
    assert rewriting.written([user("q"), assistant("yes")]).defect == "template_rewrites_prompt"


@pytest.mark.parametrize("template", ["chatml", "qwen3", "r1", "hybrid"])
@pytest.mark.parametrize("content", ["<think>only</think>", "</think>\n", "<think>", "<think>never closed", " \n"])
def test_an_answer_that_only_thinks_is_no_answer(model, template, content):
    assert ChatRenderer(model(template)).written([user("q"), assistant(content)]).defect == "empty_answer"


TEMPLATE_LISTS = {
    "a default and another": [
        {"name": "tool_use", "template": "X"},
        {"name": "default", "template": TEMPLATES["gemma"]},
    ],
    "others only": [{"name": "tool_use", "template": "X"}],
    "no templates": [3],
}


@pytest.mark.parametrize("kind", TEMPLATE_LISTS)
def test_of_several_templates_the_default_is_taken(model, kind):
    folder = Path(model("chatml"))
    (folder / "chat_template.jinja").unlink()
    change(folder / "tokenizer_config.json", chat_template=TEMPLATE_LISTS[kind])
    if kind == "a default and another":
        wanted = _wanted(str(folder), [user("x")], True)
        assert ChatRenderer(str(folder))([user("x")], True) == wanted
        assert TextTokenizer(str(folder)).chat(PromptFormat())([user("x")], True) == wanted
        return
    with pytest.raises(ConfigError, match="without a chat template"):
        TextTokenizer(str(folder)).chat(PromptFormat())


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "normalized"])
def test_control_tokens_take_the_space_beside_them_as_the_tokenizer_has_it(model, flag):
    """Phi-3's end of turn takes the space after it."""
    folder = Path(model("phi3"))
    told = json.loads((folder / "tokenizer.json").read_text())
    for token in told["added_tokens"]:
        token[flag] = token["special"]
    (folder / "tokenizer.json").write_text(json.dumps(told))
    talk = [user("a  "), assistant("  b\n"), user(" c")]
    wanted = _wanted(str(folder), talk, True)
    assert ChatRenderer(str(folder))(talk, True) == wanted
    assert TextTokenizer(str(folder)).chat(PromptFormat())(talk, True) == wanted


@pytest.mark.parametrize(("template", "opens"), [("r1", True), ("chatml", False), ("qwen3", False)])
def test_a_reply_goes_on_where_its_prompt_ends(model, template, opens):
    folder = model(template)
    chat = ChatRenderer(folder)
    assert chat.opens_thinking() == opens
    assert _text(folder, chat.encode_reply("so\n</think>\n\nyes<|im_end|>")) == "so\n</think>\n\nyes<|im_end|>"
    assert max(chat.encode_reply("yes<|im_end|>")) < 260
