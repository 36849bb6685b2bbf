"""A model's chat template: messages → the token ids that the engine sees and the student is trained on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date as Date
from functools import cached_property, lru_cache

from lpc_ray.errors import ConfigError, DataError
from lpc_ray.model.control import SeparatedTokenizer
from lpc_ray.model.files import read_tokenizer
from lpc_ray.model.template import ChatText, with_date
from lpc_ray.model.thinking import CLOSES, OPENING, OPENS, closing_of, opens_thinking, spoken
from lpc_ray.records import Message

_PROBE = "zq7probe"
_EMPTY_FIRST = re.compile(rf"\A(?:{OPENS.pattern})\s*(?:{CLOSES.pattern})\s*(?={OPENS.pattern})", re.IGNORECASE)
SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True)
class PromptFormat:
    """What a recipe says of its prompts beside their messages.

    system: opens every conversation that brings no system message; None leaves it to the template. thinking: switches the
    template's thinking on or off; None leaves it alone. date: the day that a template writes which asks for today's.
    """

    system: str | None = None
    thinking: bool | None = None
    date: Date = Date(2024, 7, 26)


@dataclass(frozen=True, slots=True)
class Written:
    """A conversation whose last turn was written by somebody: the prompt's token ids, and those of the turn as the model
    itself would generate it, through its end-of-turn token. `defect`: why it cannot be put so, else None.
    """

    prompt: list[int]
    answer: list[int]
    defect: str | None = None


class ChatTemplate:
    """Messages → token ids; only the template itself writes control tokens.

    A system message that the template refuses or leaves out is put before the user's turn that follows it.
    Raises: ConfigError without a template, and for a `thinking` that the template cannot switch; `where` names the model.
    """

    def __init__(
        self,
        tokenizer: SeparatedTokenizer,
        template: str | None,
        names: dict[str, str],
        prompt: PromptFormat = PromptFormat(),
        where: str = "the model",
    ):
        if not template:
            raise ConfigError(f"{where}: got a tokenizer without a chat template, wanted a model that is tuned to chat")
        self._tokenizer, self._prompt, self._where = tokenizer, prompt, where
        self._text = ChatText(with_date(template, prompt.date), names)
        if _PROBE not in self._rendered([_user(_PROBE)], True):
            raise ConfigError(f"{where}: got a chat template that leaves out what the user says, wanted one for texts")

    def __call__(
        self, messages: Sequence[Message], add_generation_prompt: bool, thinking: bool | None = None
    ) -> list[int]:
        """Token ids. Raises: DataError where the template refuses the conversation."""
        return self._tokenizer.encode_rendered(self._rendered(messages, add_generation_prompt, thinking))

    def check_end(self) -> None:
        """Raises: ConfigError for a template that marks no end of the assistant's turn, by which a prefix learns to stop."""
        whole = self._rendered([_user("x"), Message(role="assistant", content=_PROBE)], False)
        if _PROBE not in whole:
            raise ConfigError(f"{self._where}: got a chat template that leaves out what the assistant says")
        if self._tokenizer.first_control(self._after_answer) is None:
            raise ConfigError(
                f"{self._where}: got a chat template that ends the assistant's turn with {self._after_answer!r}, wanted a "
                "control token there, such as eos_token: without one no answer that is learned has an end"
            )

    @cached_property
    def switch(self) -> str | None:
        """The template's variable that switches thinking; None where none does."""
        for name in SWITCHES:
            if self._text([_user("x")], True, **{name: True}) != self._text([_user("x")], True, **{name: False}):
                return name
        return None

    def opens_thinking(self, thinking: bool | None = None) -> bool:
        """Whether the prompt's end opens the block in which the model thinks."""
        return opens_thinking(self._rendered([_user("x")], True, thinking))

    def encode_reply(self, text: str) -> list[int]:
        """Token ids of a reply's text, as it goes on after its prompt."""
        return self._tokenizer.encode_after(self._tokenizer.mask(text))

    def written(self, messages: Sequence[Message], thinking: bool | None = None) -> Written:
        """The conversation's prompt, and its last turn, which is the assistant's, as the model would continue it.

        Where the prompt opens a block of thinking, the turn begins with the reasoning that stands between such tags in its
        content, or with none, and closes the block. A turn that says nothing after its reasoning has a defect.
        Raises: DataError as calling it.
        """
        opened = self._rendered(messages[:-1], True, thinking)
        if not spoken(messages[-1]["content"]).strip():
            return Written([], [], "empty_answer")
        prompt, whole = self._tokenizer.encode_rendered(opened), self._rendered(messages, False, thinking)
        block = OPENING.search(opened)
        head = opened[: block.start()] if block else opened
        if not whole.startswith(head):
            return Written(prompt, [], "template_rewrites_prompt")
        turn = _EMPTY_FIRST.sub("", whole[len(head) :].removesuffix(self._after_answer) + self._end_of_turn)
        if turn.startswith(opened[len(head) :]):
            ids = self._tokenizer.encode_rendered(head + turn)
            if ids[: len(prompt)] == prompt:
                return Written(prompt, ids[len(prompt) :])
            return Written(prompt, self._tokenizer.encode_after(turn[len(opened) - len(head) :]))
        assert block is not None, "without a block of thinking the head is the whole prompt"
        reasoning, _ = _thought(self._tokenizer.mask(messages[-1]["content"]))
        _, said = _thought(turn)
        if block["closed"] is not None:
            defect = "reasoning_without_thinking" if reasoning.strip() else None
            return Written(prompt, self._tokenizer.encode_after(said), defect)
        newline = "" if opened.endswith("\n") else "\n"
        closed = f"{newline}{reasoning}\n{closing_of(block['tag'])}\n\n{said}"
        return Written(prompt, self._tokenizer.encode_after(closed))

    @cached_property
    def _after_answer(self) -> str:
        """What the template writes after the content of a last turn by the assistant."""
        whole = self._rendered([_user("x"), Message(role="assistant", content=_PROBE)], False)
        return whole.rpartition(_PROBE)[2]

    @cached_property
    def _end_of_turn(self) -> str:
        """The part of it that the model generates: through the first control token."""
        end = self._tokenizer.first_control(self._after_answer)
        return self._after_answer.rstrip() if end is None else self._after_answer[:end]

    def _rendered(self, messages: Sequence[Message], add_generation_prompt: bool, thinking: bool | None = None) -> str:
        """The conversation as text in which messages' own control tokens are masked."""
        switch = {}
        if thinking is not None:
            switch = self._switched(thinking, "thinking_probability")
        elif self._prompt.thinking is not None:
            switch = self._switched(self._prompt.thinking, "recipe.prompt.thinking")
        masked = [
            Message(role=message["role"], content=self._tokenizer.mask(message["content"]))
            for message in with_system(messages, self._prompt.system)
        ]
        others = [message for message in masked if message["role"] != "system"]
        if len(others) == len(masked):
            return self._text(masked, add_generation_prompt, **switch)
        try:
            rendered = self._text(masked, add_generation_prompt, **switch)
            is_read = not _has_system_text(masked) or rendered != self._text(others, add_generation_prompt, **switch)
        except DataError:
            is_read, rendered = False, ""
        return rendered if is_read else self._text(_folded(masked), add_generation_prompt, **switch)

    def _switched(self, thinking: bool, field: str) -> dict[str, bool]:
        if self.switch is None:
            raise ConfigError(
                f"{field}: {self._where}'s chat template has no switch {' or '.join(SWITCHES)}; leave {field} out"
            )
        return {self.switch: thinking}


class ChatRenderer(ChatTemplate):
    """The chat template of model `model` (a folder or Hugging Face id), as transformers reads it."""

    def __init__(self, model: str, revision: str | None = None, prompt: PromptFormat = PromptFormat()):
        tokenizer, template, names = _as_transformers_reads(model, revision)
        super().__init__(tokenizer, template, names, prompt, f"model {model!r}")


@lru_cache(maxsize=8)
def _as_transformers_reads(model: str, revision: str | None) -> tuple[SeparatedTokenizer, str | None, dict[str, str]]:
    tokenizer = read_tokenizer(model, revision)
    names = {name: str(text) for name, text in tokenizer.special_tokens_map.items()}
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    try:
        return SeparatedTokenizer(tokenizer.backend_tokenizer.to_str(), names.values()), template, names
    except (AttributeError, ValueError) as error:
        raise ConfigError(f"model {model!r}: its tokenizer cannot be used: {error}") from error


def with_system(messages: Sequence[Message], system: str | None) -> list[Message]:
    """`messages` after the system message `system`, unless it is None or they bring their own."""
    if system is None or (messages and messages[0]["role"] == "system"):
        return list(messages)
    return [Message(role="system", content=system), *messages]


def _thought(text: str) -> tuple[str, str]:
    """What stands in the last block of thinking, and what follows it; all follows where there is none. Without the line ends
    around either.
    """
    blocks = list(CLOSES.finditer(text))
    if not blocks:
        return "", text.lstrip("\n")
    before = text[: blocks[-1].start()]
    opened = list(OPENS.finditer(before))
    return before[opened[-1].end() if opened else 0 :].strip("\n"), text[blocks[-1].end() :].lstrip("\n")


def _user(text: str) -> Message:
    return Message(role="user", content=text)


def _has_system_text(messages: list[Message]) -> bool:
    return any(message["role"] == "system" and message["content"].strip() for message in messages)


def _folded(messages: list[Message]) -> list[Message]:
    """Without system messages: their text opens the user's turn that follows, or closes the one before where none does."""
    turns: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting += [message["content"]] if message["content"].strip() else []
        elif message["role"] == "user":
            turns.append(_user("\n\n".join([*waiting, message["content"]])))
            waiting = []
        else:
            _close(turns, waiting)
            turns.append(message)
            waiting = []
    _close(turns, waiting)
    return turns


def _close(turns: list[Message], waiting: list[str]) -> None:
    if waiting and turns and turns[-1]["role"] == "user":
        turns[-1] = _user("\n\n".join([turns[-1]["content"], *waiting]))
    elif waiting:
        turns.append(_user("\n\n".join(waiting)))
