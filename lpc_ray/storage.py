"""Files in a store: a local folder or any fsspec URL, written so that a reader never sees half a file.

A local file is written beside its target, flushed and renamed. Object stores show an object only once its upload is
complete, so a plain write is already atomic there.
"""

import json
import os
import posixpath
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from lpc_ray.errors import StorageError

T = TypeVar("T")
TEMPORARY = ".writing-"


class Store:
    """A root folder or URL, and the few operations lpc_ray needs on paths relative to it.

    Every method raises StorageError, naming the full path, when the store refuses (disk full, read-only, unreachable), and
    the constructor for a URL for which no file system is installed.
    A Store pickles as its URL.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/") or "/"
        try:
            self.filesystem, self.root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise StorageError(f"store {url!r}: {' '.join(str(error).split())}") from error
        self.is_local = "file" in _protocols(self.filesystem)

    def __reduce__(self):
        return Store, (self.url,)

    def __truediv__(self, relative: str) -> "Store":
        return Store(posixpath.join(self.url, relative))

    def __str__(self) -> str:
        return self.url

    def path(self, relative: str = "") -> str:
        """The path of `relative` as the file system spells it (for a local store, an ordinary absolute path)."""
        return posixpath.join(self.root, relative) if relative else self.root

    def exists(self, relative: str) -> bool:
        with self._explaining("read", relative):
            return self.filesystem.exists(self.path(relative))

    def read_bytes(self, relative: str) -> bytes:
        with self._explaining("read", relative):
            return self.filesystem.cat_file(self.path(relative))

    def read_json(self, relative: str) -> Any:
        """Raises: StorageError also when the file is no JSON."""
        try:
            return json.loads(self.read_bytes(relative))
        except ValueError as error:
            raise StorageError(f"{self.path(relative)}: got no valid JSON ({error})") from error

    def read_record(self, relative: str, kind: Callable[..., T]) -> T:
        """`kind` with the fields of a JSON object. Raises: StorageError also for an object with other fields."""
        value = self.read_json(relative)
        try:
            return kind(**value)
        except (TypeError, ValueError) as error:
            raise StorageError(f"{self.path(relative)}: got no {kind.__name__}: {error}") from error

    def write_bytes(self, relative: str, data: bytes) -> None:
        """Make `relative` hold exactly `data`, or leave it as it was."""
        target = self.path(relative)
        with self._explaining("write", relative):
            self.filesystem.makedirs(posixpath.dirname(target), exist_ok=True)
            if not self.is_local:
                self.filesystem.pipe_file(target, data)
                return
            temporary = posixpath.join(posixpath.dirname(target), f"{TEMPORARY}{uuid.uuid4().hex}")
            try:
                with open(temporary, "wb") as sink:
                    sink.write(data)
                    sink.flush()
                    os.fsync(sink.fileno())
                os.replace(temporary, target)
            finally:
                Path(temporary).unlink(missing_ok=True)

    def write_json(self, relative: str, value: Any) -> None:
        self.write_bytes(relative, json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True).encode())

    def names(self, relative: str = "") -> list[str]:
        """The names directly inside folder `relative`, sorted; empty when there is no such folder."""
        with self._explaining("read", relative):
            if not self.filesystem.isdir(self.path(relative)):
                return []
            self.filesystem.invalidate_cache(self.path(relative))
            found = self.filesystem.ls(self.path(relative), detail=False)
        names = (posixpath.basename(str(path).rstrip("/")) for path in found)
        return sorted(name for name in names if not name.startswith(TEMPORARY))

    def remove(self, relative: str) -> None:
        with self._explaining("remove", relative):
            if self.filesystem.exists(self.path(relative)):
                self.filesystem.rm(self.path(relative), recursive=True)

    def check_writable(self) -> None:
        """Fail now rather than after an hour of work."""
        probe = f"probe-{uuid.uuid4().hex}"
        self.write_bytes(probe, b"lpc_ray")
        self.remove(probe)

    @contextmanager
    def _explaining(self, verb: str, relative: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise StorageError(f"cannot {verb} {self.path(relative)}: {reason}") from error


def open_store(url: str) -> Store:
    """The store at `url`; a relative folder is taken from here, for workers run in other folders."""
    return Store(url if "://" in url else os.path.abspath(url))


def _protocols(filesystem) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
