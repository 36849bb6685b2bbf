"""A model's tokenizer for plain text, without loading transformers."""

from pathlib import Path

from tokenizers import Tokenizer

from lpc_ray.embedded_model import resolve_model
from lpc_ray.errors import ConfigError


class TextTokenizer:
    """Token ids of raw text, without special tokens, and where each token lies in it.

    Raises: ConfigError for a model without a `tokenizer.json`.
    """

    def __init__(self, model: str, revision: str | None = None):
        resolved = resolve_model(model)
        file = Path(resolved) / "tokenizer.json"
        try:
            if file.exists():
                self._tokenizer = Tokenizer.from_file(str(file))
            else:
                self._tokenizer = Tokenizer.from_pretrained(resolved, revision=revision or "main")
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
