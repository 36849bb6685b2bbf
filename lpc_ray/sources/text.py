"""A user's text file, JSON or JSONL, read or refused in one line."""

import codecs
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from lpc_ray import plain_json
from lpc_ray.errors import DataError

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.*)", re.DOTALL)
_WIDE_MARKS = {
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}


def read_text(path: Path, what: str, most_bytes: int | None = None) -> str:
    """The UTF-8 text of a user's file: without a byte order mark, and every line ends in LF, whichever system wrote it.

    most_bytes: a larger file is refused before it is read. Raises: DataError that starts with `what`.
    """
    check_no_url(path, what)
    path = expanded(path)
    where = f"{what} {path}"
    try:
        is_odd = path.exists() and not path.is_file() and not path.is_dir()
        size = path.stat().st_size if not is_odd else 0
        data = path.read_bytes() if not is_odd and size <= (most_bytes or size) else b""
    except OSError as error:
        raise DataError(f"{where}: {error.strerror or error}") from error
    except ValueError as error:  # what is no path at all
        raise DataError(f"{what} {str(path)!r}: {error}") from error
    if is_odd:
        raise DataError(f"{where}: got a pipe or device, wanted a file")
    if most_bytes is not None and size > most_bytes:
        raise DataError(f"{where}: got a file of {size:,} bytes, wanted at most {most_bytes:,}")
    text = _decoded(data, where)
    if "\0" in text:
        raise DataError(f"{where}: got a NUL character at offset {text.index(chr(0))}, wanted text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        for encoding, marks in _WIDE_MARKS.items():
            if data.startswith(marks):
                raise DataError(f"{where}: got {encoding}, wanted UTF-8 (iconv -f {encoding} -t UTF-8)") from error
        raise DataError(f"{where}: got a byte that is not UTF-8 at offset {error.start}") from error


def check_no_url(path: str | Path, what: str) -> None:
    """Raises: DataError that starts with `what`, for the URL of something: files alone are read. A Path has lost a slash."""
    found = _URL.match(str(path))
    if found is not None and not os.path.lexists(path):
        url = f"{found['scheme']}://{found['rest']}"
        raise DataError(f"{what} {url}: got a URL, which is not read, wanted a file: download it and name the copy")


def is_blank(text: str) -> bool:
    """Whether nothing of it can be seen: spaces, line ends, marks without a width."""
    return not any(one.isprintable() and not one.isspace() for one in text)


def expanded(path: str | Path) -> Path:
    """A path as a user writes it, with the home folder for `~`, which no shell replaces inside a setting."""
    return Path(os.path.expanduser(path))


def spelled(path: str | PurePath) -> str:
    """A path as a text that every store, page and tokenizer takes: its bytes that are not UTF-8 as escapes (`\\xe9`)."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def read_rows(path: Path, what: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, object) for every line of a JSONL file that is not blank. JSON's strings may hold the characters that break
    lines elsewhere, such as U+2028.

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
        return plain_json.parse(text)
    except ValueError as error:
        reason = str(error)
        raise DataError(f"{where}: {reason if reason.startswith('got ') else f'not JSON: {reason}'}") from error
