"""A user's text file, read or refused in one line."""

from pathlib import Path

from lpc_ray.errors import DataError


def read_text(path: Path, what: str) -> str:
    """The UTF-8 text of a user's file. Raises: DataError that starts with `what`."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{what} {path}: got a byte that is not UTF-8 at offset {error.start}") from error
    except OSError as error:
        raise DataError(f"{what} {path}: {error.strerror or error}") from error
