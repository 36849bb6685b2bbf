"""A model's tokenizer and chat template as its files have them, without loading transformers."""

import json
from typing import Any

from lpc_ray.errors import ConfigError
from lpc_ray.model.chat import ChatTemplate, PromptFormat
from lpc_ray.model.control import SeparatedTokenizer
from lpc_ray.model.embedded import model_file, resolve_model
from lpc_ray.model.finding import TOKENIZER


class TextTokenizer:
    """Token ids of raw text, without special tokens, and where each token lies in it; text is never a control token.

    Raises: ConfigError for a model without a `tokenizer.json`.
    """

    def __init__(self, model: str, revision: str | None = None):
        self._name, self._model, self._revision = model, resolve_model(model), revision
        try:
            if (serialised := self._read(TOKENIZER)) is None:
                raise ConfigError(f"model {model!r}: {TOKENIZER} is missing")
            self._config = json.loads(self._read("tokenizer_config.json") or "{}")
            self._tokenizer = SeparatedTokenizer(serialised, self._named().values())
        except ConfigError:
            raise
        except Exception as error:  # the tokenizers library raises plain Exception, a malformed file whatever it likes
            raise ConfigError(
                f"recipe.model.id {model!r}: no tokenizer can be read: {' '.join(str(error).split())[:300]}"
            ) from error

    @property
    def max_id(self) -> int:
        """The highest token id there is; a model may have rows for fewer."""
        return self._tokenizer.max_id

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The (start, end) characters of each token."""
        return self._tokenizer.encode(text).offsets

    def chat(self, prompt: PromptFormat) -> ChatTemplate:
        """The model's chat template. Raises: ConfigError where there is none, or it cannot do what `prompt` asks of it."""
        return ChatTemplate(self._tokenizer, self._template(), self._named(), prompt, f"model {self._name!r}")

    def _template(self) -> str | None:
        named = self._config.get("chat_template")
        if isinstance(named, list):
            named = {one.get("name"): one.get("template") for one in named if isinstance(one, dict)}
        if isinstance(named, dict):
            named = named.get("default")
        return self._read("chat_template.jinja") or (named if isinstance(named, str) else None)

    def _named(self) -> dict[str, str]:
        """`eos_token` and the like → its text."""
        found = {name: _content(value) for name, value in self._config.items() if name.endswith("_token")}
        return {name: text for name, text in found.items() if isinstance(text, str)}

    def _read(self, name: str) -> str | None:
        file = model_file(self._model, name, self._revision)
        try:
            return file.read_text(encoding="utf-8") if file else None
        except UnicodeDecodeError as error:
            raise ConfigError(f"model {self._name!r}: {name}: got a byte that is not UTF-8 at {error.start}") from error


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token
