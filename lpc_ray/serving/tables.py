"""Where the handles of a server lie: an SQLite file in a local folder, or one object per handle in an object store."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from lpc_ray.errors import StorageError
from lpc_ray.storage import Store

FILE = "handles.sqlite"
_OBJECTS = "handles"
_CONFIGURED = "configured.json"
_WORKERS = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """What a handle points to. num_tokens: visible length; num_bytes: of both tensors; pinned: kept in the host tier."""

    digest: str
    kind: str
    num_tokens: int
    num_bytes: int
    pinned: bool = False


class Table(Protocol):
    """Handle → entry, and handle → digest that a server's settings named last. A write of one handle is whole or did not
    happen.

    Blocking. Raises: StorageError when the store cannot be read or written, or holds something else.
    """

    def entries(self) -> dict[str, Entry]: ...

    def put(self, entries: Mapping[str, Entry]) -> None: ...

    def remove(self, handle: str) -> None: ...

    def configured(self) -> dict[str, str]: ...

    def configure(self, named: dict[str, str]) -> None: ...


def open_table(store: Store) -> Table:
    """The table that lies in `store`, new if there is none."""
    return SQLiteTable(Path(store.path(FILE))) if store.is_local else ObjectTable(store)


class SQLiteTable:
    """One file. A connection serves one call at a time, from any thread."""

    def __init__(self, path: Path):
        self._path = path
        with self._explaining():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS handles (handle TEXT PRIMARY KEY, digest TEXT NOT NULL, kind TEXT NOT NULL, "
                "num_tokens INTEGER NOT NULL, num_bytes INTEGER NOT NULL, pinned INTEGER NOT NULL) WITHOUT ROWID"
            )
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS configured (handle TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID"
            )

    def entries(self) -> dict[str, Entry]:
        with self._explaining():
            rows = self._connection.execute("SELECT handle, digest, kind, num_tokens, num_bytes, pinned FROM handles")
            return {handle: Entry(*rest, pinned=bool(pinned)) for handle, *rest, pinned in rows}

    def put(self, entries: Mapping[str, Entry]) -> None:
        rows = [(handle, *asdict(entry).values()) for handle, entry in entries.items()]
        self._write("INSERT OR REPLACE INTO handles VALUES (?, ?, ?, ?, ?, ?)", rows)

    def remove(self, handle: str) -> None:
        self._write("DELETE FROM handles WHERE handle = ?", [(handle,)])

    def configured(self) -> dict[str, str]:
        with self._explaining():
            return dict(self._connection.execute("SELECT handle, digest FROM configured"))

    def configure(self, named: dict[str, str]) -> None:
        self._write("INSERT OR REPLACE INTO configured VALUES (?, ?)", list(named.items()))

    def _write(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        with self._explaining(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(statement, rows)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, TypeError) as error:
            raise StorageError(f"{self._path}: got no table of handles: {error}") from error


class ObjectTable:
    """One small object per handle: a change writes one, a start reads all, many at a time."""

    def __init__(self, store: Store):
        self._store = store

    def entries(self) -> dict[str, Entry]:
        paths = [f"{_OBJECTS}/{name}" for name in self._store.names(_OBJECTS)]
        with ThreadPoolExecutor(_WORKERS) as readers:
            return dict(readers.map(self._read, paths))

    def put(self, entries: Mapping[str, Entry]) -> None:
        with ThreadPoolExecutor(_WORKERS) as writers:
            list(
                writers.map(
                    lambda item: self._store.write_json(f"{_OBJECTS}/{item[0]}.json", asdict(item[1])), entries.items()
                )
            )

    def remove(self, handle: str) -> None:
        self._store.remove(f"{_OBJECTS}/{handle}.json")

    def configured(self) -> dict[str, str]:
        return dict(self._store.read_json(_CONFIGURED)) if self._store.exists(_CONFIGURED) else {}

    def configure(self, named: dict[str, str]) -> None:
        self._store.write_json(_CONFIGURED, self.configured() | named)

    def _read(self, path: str) -> tuple[str, Entry]:
        raw: Any = self._store.read_json(path)
        if not isinstance(raw, dict) or set(raw) != {field.name for field in fields(Entry)}:
            raise StorageError(f"{self._store.path(path)}: got no entry of a handle: {json.dumps(raw)[:200]}")
        return Path(path).stem, Entry(**raw)
