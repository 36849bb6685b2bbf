"""What of a tokenizer and a chat template changes the token ids that a conversation becomes."""

import json
from typing import Any

from lpc_ray.errors import ConfigError

_PER_CALL = ("version", "truncation", "padding")  # set for each call, or saying nothing of the ids


def tokenizer_fields(tokenizer: str) -> dict[str, Any]:
    """A `tokenizer.json` as values to be compared: without what is set per call, nulls and switches that are off.

    The library adds switches over time, off where a file does not know them; merges are pairs or "a b" by its age.
    """
    fields = json.loads(tokenizer)
    return _told({name: value for name, value in fields.items() if name not in _PER_CALL})


def template_of(template: Any) -> str:
    """The text of a chat template as Jinja reads it: one kind of line end, and not the last one. "": there is none.

    template: as transformers has it: None, a text, or several by name, of which `default` renders conversations.
    """
    text = template.get("default") if isinstance(template, dict) else template
    if text is not None and not isinstance(text, str):
        raise ConfigError(f"chat template: got a {type(text).__name__}, wanted a text")
    return (text or "").replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")


def _told(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: [" ".join(pair) if isinstance(pair, list) else pair for pair in inner]
            if name == "merges" and isinstance(inner, list)
            else _told(inner)
            for name, inner in value.items()
            if inner is not None and inner is not False
        }
    return [_told(inner) for inner in value] if isinstance(value, list) else value
