"""Reading untrusted files, and writing a folder whole or not at all."""

import io
import os
import re
import shutil
import stat
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lpc_ray import plain_json
from lpc_ray.errors import ArtifactError, StorageError
from lpc_ray.storage import TEMPORARY, remove_stale

_TORCH_STARTS = (b"PK\x03\x04", b"\x80")
_SIGNS = {
    "TorchScript": "got a TorchScript archive",
    "legacy .tar": "got the .tar format of torch before 0.4, wanted one that a newer torch has saved",
    "persistent_load": "got modules in the format of torch before 1.6, wanted plain lists or one that a newer torch has saved",
    "Unsupported operand 149": "got a pickle protocol above 2, wanted the one that torch.save has by default",
}


def read_file(path: Path) -> bytes:
    """Raises: ArtifactError unless `path` is a file that can be read; a pipe or device is never opened."""
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise ArtifactError(f"{path}: got a {'folder' if stat.S_ISDIR(mode) else 'pipe or device'}, wanted a file")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ArtifactError(f"{path}: does not exist") from error
    except (OSError, MemoryError) as error:
        raise ArtifactError(f"{path}: {getattr(error, 'strerror', None) or 'larger than the memory'}") from error


def load_tensors_only(path: Path) -> Any:
    """The object in a torch file made of tensors, containers, numbers and strings; a ParameterList comes as a plain list.

    Anything else in the pickle is refused before it is built, so no code of the file's runs.
    Raises: ArtifactError naming the file and the reason.
    """
    data = read_file(path)
    try:
        with torch.serialization.safe_globals([nn.ParameterList]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _plain(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    except Exception as error:  # a hostile file may fail in any way the unpickler knows
        raise ArtifactError(f"{path}: not a torch file of tensors alone: {_reason(data, str(error))}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, nn.ParameterList):
        return [item.detach() for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _reason(data: bytes, message: str) -> str:
    """What is wrong, without torch's advice to load the file unsafely."""
    if not data.startswith(_TORCH_STARTS):
        return "got neither a zip archive nor a pickle"
    for sign, reason in _SIGNS.items():
        if sign in message:
            return reason
    if found := re.search(r"GLOBAL (\S+)", message):
        return f"got {found[1][:100]}, wanted tensors, containers, numbers and strings"
    plain = " ".join(message.split())[:200]
    return plain if len(plain.split()) > 2 and "weights_only" not in plain else "got bytes that are no such file"


def read_json(path: Path) -> Any:
    """Raises: ArtifactError when `path` is missing or no JSON."""
    data = read_file(path)
    try:
        return plain_json.parse(data.decode())
    except ValueError as error:
        raise ArtifactError(f"{path}: not JSON: {error}") from error


def shown(value: Any) -> str:
    """A value of a file's, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def read_fields(path: Path) -> dict[str, Any]:
    """Raises: ArtifactError unless `path` holds a JSON object."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ArtifactError(f"{path}: got a JSON {type(found).__name__}, wanted an object")
    return found


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, renamed to `target` when the block ends without an error, else removed with what it needed.

    Raises: ArtifactError when `target` exists, StorageError when it cannot be written.
    """
    made: list[Path] = []
    staged = target.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    try:
        if os.path.lexists(target):
            raise ArtifactError(f"{target}: exists already, wanted a folder to make")
        made = [folder for folder in target.absolute().parents if not folder.exists()]
        staged.mkdir(parents=True)
        remove_stale(target.parent)
        yield staged
        os.rename(staged, target)
        made = []
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        _remove_empty(made)


def _remove_empty(folders: list[Path]) -> None:
    """Innermost first, as long as each is empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
