"""A user's text file, JSON or JSONL, read or refused in one line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lpc_ray.errors import DataError


def read_text(path: Path, what: str) -> str:
    """The UTF-8 text of a user's file. Raises: DataError that starts with `what`."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise DataError(f"{what} {path}: got a pipe or device, wanted a file")
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{what} {path}: got a byte that is not UTF-8 at offset {error.start}") from error
    except OSError as error:
        raise DataError(f"{what} {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{what} {str(path)!r}: {error}") from error
    if "\0" in text:
        raise DataError(f"{what} {path}: got a NUL character at offset {text.index(chr(0))}, wanted text")
    return text


def read_rows(path: Path, what: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, object) for every line of a JSONL file that is not blank. Lines end in LF, or CR and LF: JSON's strings may
    hold the other characters that break lines.

    Raises: DataError naming the line, and for a file without any object.
    """
    is_empty = True
    for number, line in enumerate(read_text(path, what).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{what} {path} line {number}"
        row = parse_json(line, where)
        if not isinstance(row, dict):
            raise DataError(f"{where}: got {type(row).__name__}, wanted an object")
        is_empty = False
        yield where, row
    if is_empty:
        raise DataError(f"{what} {path}: got an empty file, wanted one JSON object per line")


def parse_json(text: str, where: str) -> Any:
    """The JSON value in `text`, whose strings are all text. Raises: DataError."""
    try:
        value = json.loads(text, object_pairs_hook=_once)
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: got a lone surrogate in a string, wanted Unicode text") from error
    except RecursionError as error:
        raise DataError(f"{where}: got JSON that is nested too deeply") from error
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; plain JSON silently keeps the last of two values of one key. Raises: ValueError."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"got key {next(key for key in keys if keys.count(key) > 1)!r} more than once")
    return found
