"""A model's tokenizer for plain text, without loading transformers."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from lpc_ray.errors import ConfigError
from lpc_ray.model.embedded import model_file, resolve_model
from lpc_ray.model.finding import TOKENIZER


class TextTokenizer:
    """Token ids of raw text, without special tokens, and where each token lies in it.

    Raises: ConfigError for a model without a `tokenizer.json`.
    """

    def __init__(self, model: str, revision: str | None = None):
        self._model, self._revision = resolve_model(model), revision
        if model_file(self._model, TOKENIZER, revision) is None:
            raise ConfigError(f"model {model!r}: {TOKENIZER} is missing")
        file = Path(self._model) / TOKENIZER
        try:
            if file.exists():
                self._tokenizer = Tokenizer.from_file(str(file))
            else:
                self._tokenizer = Tokenizer.from_pretrained(self._model, revision=revision or "main")
        except Exception as error:  # the tokenizers library raises plain Exception
            raise ConfigError(
                f"recipe.model.id {model!r}: no tokenizer can be read: {' '.join(str(error).split())[:300]}"
            ) from error

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The (start, end) characters of each token."""
        return self._tokenizer.encode(text, add_special_tokens=False).offsets

    def control_tokens(self) -> list[str]:
        """The texts by which the model's chat template marks turns, and that are one token wherever they stand."""
        template = self._read("chat_template.jinja") or self._template_in_config()
        special = (token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special)
        return sorted(text for text in special if text in template)

    def _template_in_config(self) -> str:
        return str(json.loads(self._read("tokenizer_config.json") or "{}").get("chat_template", ""))

    def _read(self, name: str) -> str | None:
        file = model_file(self._model, name, self._revision)
        return file.read_text(encoding="utf-8") if file else None
