from dataclasses import dataclass
from pathlib import Path

from lpc_ray.config.loading import Strict
from lpc_ray.errors import ConfigError, DataError
from lpc_ray.prefix.initializers.base import Encode, Initialized, Start, require
from lpc_ray.records import digest_of
from lpc_ray.sources.documents import read_text


class Settings(Strict):
    """`path`: a UTF-8 file; `text` starts from its first tokens."""

    path: str


@dataclass(frozen=True)
class Text:
    path: str
    token_ids: list[int]
    artifact = None

    @property
    def digest(self) -> str:
        return digest_of(self.token_ids)

    def check(self, num_tokens: int, where: str) -> None:
        if len(self.token_ids) < num_tokens:
            raise DataError(
                f"{where}: got a text of {len(self.token_ids)} tokens in {self.path}, wanted at least num_tokens = "
                f"{num_tokens}"
            )


def minimum_source(num_tokens: int) -> int:
    return 0


def find(settings: Settings | None, encode: Encode) -> Text:
    """Raises: ConfigError without settings, DataError for an unreadable file."""
    if settings is None:
        raise ConfigError(
            "recipe.initializers.text: missing, wanted the path of the text that initializer text starts from"
        )
    return Text(settings.path, encode(read_text(Path(settings.path), "recipe.initializers.text")))


def initialize(start: Start) -> Initialized:
    """A forward over the first P tokens of any given text, related to the source or not.

    This project's own control; it follows first_k, Cartridges, arXiv 2506.06266, section 3.2.
    Raises: DataError for a text shorter than P.
    """
    from lpc_ray.prefix.attention import forward_cache

    text, num_tokens = start.extra, start.num_tokens
    assert isinstance(text, Text), "read_starts reads what is in use"
    require(len(text.token_ids) >= num_tokens, f"text ({text.path})", len(text.token_ids), f"at least P = {num_tokens}")
    keys, values = forward_cache(start.model, text.token_ids[:num_tokens])
    return Initialized(keys, values, {"initializer": "text", "text": text.path})
