"""Reading files that nobody vouches for, and writing a folder whole or not at all."""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lpc_ray.errors import ArtifactError, StorageError
from lpc_ray.storage import TEMPORARY


def load_tensors_only(path: Path) -> Any:
    """The object in a torch file made of tensors, containers, numbers and strings; a ParameterList comes as a plain list.

    Anything else in the pickle is refused before it is built, so no code of the file's runs.
    Raises: ArtifactError naming the file and the reason.
    """
    try:
        with torch.serialization.safe_globals([nn.ParameterList]):
            return _plain(torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError as error:
        raise ArtifactError(f"{path}: does not exist") from error
    except Exception as error:  # a hostile file may fail in any way the unpickler knows
        raise ArtifactError(f"{path}: not a torch file of tensors alone: {_reason(error)}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, nn.ParameterList):
        return [item.detach() for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _reason(error: Exception) -> str:
    """The line that tells what is wrong, without torch's advice to load the file unsafely."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Unsupported" in line or "GLOBAL" in line]
    return (telling or lines or [type(error).__name__])[0][:200]


def read_json(path: Path) -> Any:
    """Raises: ArtifactError when `path` is missing or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(f"{path}: does not exist") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: not JSON: {error}") from error


def read_fields(path: Path) -> dict[str, Any]:
    """Raises: ArtifactError unless `path` holds a JSON object."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ArtifactError(f"{path}: got a JSON {type(found).__name__}, wanted an object")
    return found


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, renamed to `target` when the block ends without an error, else removed.

    Raises: ArtifactError when `target` exists, StorageError when it cannot be written.
    """
    if target.exists():
        raise ArtifactError(f"{target}: exists already, wanted a folder to make")
    staged = target.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    try:
        staged.mkdir(parents=True)
        yield staged
        os.rename(staged, target)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
