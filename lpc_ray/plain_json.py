"""JSON as its standard has it, where Python's reader takes more: NaN, a key twice, half a character."""

import json
import math
from typing import Any, NoReturn


def parse(text: str | bytes) -> Any:
    """The value in `text`, every number finite, every key once and every string Unicode text.

    Raises: ValueError that says what is wrong, for nesting that is too deep as well.
    """
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_float=_finite, parse_constant=_no_number)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("got a lone surrogate in a string, wanted Unicode text") from error
    except RecursionError as error:
        raise ValueError("got JSON that is nested too deeply") from error
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"got key {next(key for key in keys if keys.count(key) > 1)!r} more than once")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"got {text[:40]}, wanted a number that a float holds")
    return number


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"got {text}, which is no number in JSON")
