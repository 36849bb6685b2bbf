"""A model's chat template: messages → the token ids that the engine sees and the student is trained on."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from lpc_ray.errors import ConfigError
from lpc_ray.model.files import read_tokenizer
from lpc_ray.records import Message


def render_chat(
    tokenizer: Any, messages: Sequence[Message], add_generation_prompt: bool, thinking: bool | None = None
) -> list[int]:
    """Token ids of `messages` under the template of a transformers tokenizer.

    thinking: the template's `enable_thinking`; None leaves it alone. Raises: ConfigError where the template has none.
    """
    switch = {}
    if thinking is not None:
        if "enable_thinking" not in str(tokenizer.chat_template):
            raise ConfigError(
                "thinking: the model's chat template has no switch enable_thinking; leave thinking_probability out"
            )
        switch = {"enable_thinking": thinking}
    return tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False, **switch
    )


class ChatRenderer:
    """The template of model `model` (a folder or Hugging Face id), opening every conversation with `system`.

    See `lpc_ray.model.chat.with_system`, and `lpc_ray.traces.store.Render` for the call.
    """

    def __init__(self, model: str, revision: str | None, system: str | None):
        self._tokenizer = _tokenizer(model, revision)
        self._system = system

    def __call__(
        self, messages: Sequence[Message], add_generation_prompt: bool, thinking: bool | None = None
    ) -> list[int]:
        return render_chat(self._tokenizer, with_system(messages, self._system), add_generation_prompt, thinking)


@lru_cache(maxsize=8)
def _tokenizer(model: str, revision: str | None) -> Any:
    return read_tokenizer(model, revision)


def with_system(messages: Sequence[Message], system: str | None) -> list[Message]:
    """`messages` after the system message `system`, unless it is None or they bring their own."""
    if system is None or (messages and messages[0]["role"] == "system"):
        return list(messages)
    return [Message(role="system", content=system), *messages]
