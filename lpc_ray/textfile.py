"""A user's text file, and JSON in it, read or refused in one line."""

import json
from pathlib import Path
from typing import Any

from lpc_ray.errors import DataError


def read_text(path: Path, what: str) -> str:
    """The UTF-8 text of a user's file. Raises: DataError that starts with `what`."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{what} {path}: got a byte that is not UTF-8 at offset {error.start}") from error
    except OSError as error:
        raise DataError(f"{what} {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{what} {str(path)!r}: {error}") from error


def parse_json(text: str, where: str) -> Any:
    """The JSON value in `text`, whose strings are all text. Raises: DataError."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: got a lone surrogate in a string, wanted Unicode text") from error
    except RecursionError as error:
        raise DataError(f"{where}: got JSON that is nested too deeply") from error
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from error
