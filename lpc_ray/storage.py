"""Files in a store: a local folder or any fsspec URL, written so that a reader never sees half a file.

A local file is written beside its target, flushed and renamed. Object stores show an object only once its upload is
complete, so a plain write is already atomic there.
"""

import json
import os
import posixpath
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from lpc_ray import plain_json
from lpc_ray.errors import StorageError

T = TypeVar("T")
TEMPORARY = ".writing-"
_STALE_SECONDS = 3600


class Store:
    """A root folder or URL, and the few operations lpc_ray needs on paths relative to it.

    Every method raises StorageError, naming the full path, when the store refuses (disk full, read-only, unreachable), and
    the constructor for what is neither a folder nor the URL of a file system that is installed and answers.
    A Store pickles as its URL.
    """

    def __init__(self, url: str):
        self.url = check_url(url)
        try:
            self.filesystem, self.root = fsspec.core.url_to_fs(self.url)
        except Exception as error:  # each of fsspec's file systems fails in its own way
            raise StorageError(f"store {url[:300]!r}: {_reason(error)}") from error
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
            return self._mode(relative) is not None if self.is_local else self.filesystem.exists(self.path(relative))

    def _mode(self, relative: str) -> int | None:
        """`st_mode` of what lies in a local store; None where nothing does, which is not the same as being kept from it."""
        try:
            return os.stat(self.path(relative)).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _is_folder(self, relative: str) -> bool:
        if self.is_local:
            return stat.S_ISDIR(self._mode(relative) or 0)
        return self.filesystem.isdir(self.path(relative))

    def read_bytes(self, relative: str) -> bytes:
        with self._explaining("read", relative):
            return self.filesystem.cat_file(self.path(relative))

    def read_json(self, relative: str) -> Any:
        """Raises: StorageError also when the file is no JSON."""
        try:
            return plain_json.parse(self.read_bytes(relative))
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
            remove_stale(posixpath.dirname(target))
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
            if not self._is_folder(relative):
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
        with self.marked():
            pass

    @contextmanager
    def marked(self) -> Iterator[str]:
        """The name of a file that is there until the block ends: where it is missing, the store is another."""
        mark = f"probe-{uuid.uuid4().hex}"
        self.write_bytes(mark, b"lpc_ray")
        try:
            yield mark
        finally:
            self.remove(mark)

    @contextmanager
    def _explaining(self, verb: str, relative: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each of fsspec's file systems fails in its own way
            raise StorageError(f"cannot {verb} {self.path(relative)}: {_reason(error)}") from error


def check_room(folder: str, inner_bytes: int) -> None:
    """Whether a local folder could be made or written, without writing one; a file without a name is made for it and gone.

    inner_bytes: of the longest path that is to lie below it. Raises: StorageError.
    """
    there = folder
    while not os.path.lexists(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    try:
        longest, most = max(len(os.fsencode(part)) for part in folder.split("/")), os.pathconf("/", "PC_NAME_MAX")
        if longest > most:
            raise StorageError(f"store {folder[:300]}: got a name of {longest} bytes, wanted at most {most}")
        size, most = len(os.fsencode(folder)) + inner_bytes, os.pathconf("/", "PC_PATH_MAX")
        if size > most:
            raise StorageError(f"store {folder[:300]}…: got paths of {size} bytes below it, wanted at most {most}")
        if not os.path.isdir(there):
            raise StorageError(f"store {folder}: {there} is no folder, wanted one or nothing there")
        with tempfile.TemporaryFile(dir=there):
            pass
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"store {folder[:300]}: cannot write {there[:300]}: {error.strerror or error}") from error


def remove_stale(folder: str | Path) -> None:
    """Remove what writers that were killed an hour ago or more have left in a local folder, as far as we may."""
    with suppress(OSError), os.scandir(folder) as found:
        for entry in [entry for entry in found if entry.name.startswith(TEMPORARY)]:
            _remove_if_stale(entry)


def _remove_if_stale(entry: os.DirEntry[str]) -> None:
    with suppress(OSError):
        if time.time() - entry.stat(follow_symlinks=False).st_mtime < _STALE_SECONDS:
            return
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


def open_store(url: str) -> Store:
    """The store at `url`; a relative folder is taken from here, for workers run in other folders."""
    return Store(absolute(url))


def absolute(url: str) -> str:
    """The URL, or the absolute path of a folder. Raises: StorageError as `check_url`."""
    checked = check_url(url)
    try:
        return checked if "://" in checked else os.path.abspath(os.path.expanduser(checked))
    except FileNotFoundError as error:
        raise StorageError(f"store {url}: got a working directory that is gone, wanted an absolute path") from error


def check_url(url: str) -> str:
    """`url` without slashes at its end. Raises: StorageError for what would be taken for a folder and was not meant as one."""
    if not url.strip() or "\0" in url:
        raise StorageError(f"store: got {url!r}, wanted a folder or URL")
    if "::" in url:
        raise StorageError(f"store {url!r}: got a chain of URLs, wanted a folder or one URL")
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme = url.partition(":")[0]
        if ":" in url and (scheme in fsspec.available_protocols() or not scheme):
            raise StorageError(f"store {url!r}: got no URL, wanted {scheme or 'protocol'}://… or a folder")
        return url.rstrip("/") or "/"
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise StorageError(f"store {url!r}: got protocol {scheme!r}, wanted letters and digits before ://, or a folder")
    path = rest.rstrip("/")
    if scheme in ("file", "local"):
        if not rest.startswith("/"):
            raise StorageError(f"store {url!r}: got no absolute path, wanted {scheme}:///…")
        path = path or "/"
    return f"{scheme}://{path}"


def _reason(error: Exception) -> str:
    """In one line; `strerror` alone where the path is named elsewhere."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    message = " ".join(str(error).split())[:300]
    is_plain = isinstance(error, (OSError, ImportError, ValueError)) and message
    return message if is_plain else f"{type(error).__name__}: {message}".rstrip(": ")


def _protocols(filesystem) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
