"""Traces → tokens: validate, tokenise, store (Parquet, append-only, resumable by id).

Shape letters: T tokens, K top-k entries.
"""

import io
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lpc_ray.errors import DataError, StorageError
from lpc_ray.records import TOP_K, TRACE_SCHEMA, TraceRow, digest_of
from lpc_ray.storage import Store

SHARED = (
    "The store must be one that every node reads and writes: a folder that all share, or the URL of an object store"
)


@dataclass(frozen=True, slots=True)
class Written:
    """What is reported of a unit: how many rows were written, dropped ones included, and on which node."""

    rows: int
    node: str


class TraceStore:
    """The rows of one trace set: Parquet parts in one folder, each written whole; an id occurs once.

    A part is named by the units it holds, so a batch that runs twice after a crash replaces its own part.
    """

    def __init__(self, store: Store):
        self.store = store
        self._counted: dict[str, Counter[str]] = {}

    def append(self, rows: list[TraceRow]) -> None:
        """Add the rows of finished units. Raises: StorageError; nothing is visible then."""
        if rows:
            units = sorted({row.unit for row in rows})
            self.store.write_bytes(f"part-{digest_of(units)}.parquet", as_parquet(rows))

    def units(self) -> set[str]:
        """The units that need not be done again. A part that was seen before is not read again."""
        return set(self.row_counts())

    def row_counts(self) -> Counter[str]:
        """Unit → its rows, dropped ones included. A part that was seen before is not read again."""
        names = self._parts()
        for name in names:
            if name not in self._counted:
                self._counted[name] = Counter(self._table(name, ["unit"])["unit"].to_pylist())
        return sum((self._counted[name] for name in names), Counter())

    def check_holds(self, units: Iterable[str], reported: Mapping[str, "Written"]) -> None:
        """Raises: StorageError, which says how many rows are missing and who wrote them, unless all `units` are there, each
        with the rows that were `reported` as written.
        """
        held = self.row_counts()
        lost = [unit for unit in {*units, *reported} if not held[unit]]
        odd = [unit for unit, written in reported.items() if held[unit] not in (0, written.rows)]
        if not lost and not odd:
            return
        writers = sorted({reported[unit].node for unit in (*lost, *odd) if unit in reported})
        by = f"written on {', '.join(writers)}" if writers else "and no batch reports them"
        rows, arrived = sum(written.rows for written in reported.values()), sum(held[unit] for unit in reported)
        raise StorageError(
            f"traces {self.store}: got {arrived} rows, wanted the {rows} that batches report: {len(lost)} units are missing, "
            f"{len(odd)} have other rows, {by}. {SHARED}"
        )

    def rows(self, teacher_tokens: int | None = None) -> list[TraceRow]:
        """The rows that can be trained on, in the order of their ids.

        teacher_tokens: only the first units, in that order (which is as good as random), whose rows, dropped ones
        included, cost at most so many together.
        """
        return [row for row in self._chosen(teacher_tokens) if row.drop_reason is None]

    def summary(self, teacher_tokens: int | None = None) -> dict:
        """Counts: rows, dropped by reason, truncated, teacher_tokens, targets; of `rows(teacher_tokens)`."""
        counts: Counter = Counter()
        dropped: Counter = Counter()
        for row in self._chosen(teacher_tokens):
            counts["teacher_tokens"] += row.teacher_tokens
            if row.drop_reason is not None:
                dropped[row.drop_reason] += 1
                continue
            counts["rows"] += 1
            counts["truncated"] += row.truncated
            counts["targets"] += int(row.is_target.sum())
        keys = ("rows", "truncated", "teacher_tokens", "targets")
        return {**{key: counts[key] for key in keys}, "dropped": dict(sorted(dropped.items()))}

    def digest(self, teacher_tokens: int | None = None) -> str:
        """The identity of `rows(teacher_tokens)`: their ids and token ids."""
        return digest_of([(row.id, row.token_ids.tolist()) for row in self.rows(teacher_tokens)])

    def _chosen(self, teacher_tokens: int | None) -> list[TraceRow]:
        found = sorted(self.all_rows(), key=lambda row: row.id)
        return found if teacher_tokens is None else _within(found, teacher_tokens)

    def all_rows(self) -> Iterable[TraceRow]:
        """Every row, dropped ones too, part by part. Raises: DataError for an id that occurs twice or a torn part."""
        seen: set[str] = set()
        for part in self._parts():
            for values in self._table(part, None).to_pylist():
                if values["id"] in seen:
                    raise DataError(f"trace store {self.store}: id {values['id']} occurs twice")
                seen.add(values["id"])
                yield _row(values)

    def _parts(self) -> list[str]:
        return [name for name in self.store.names() if name.endswith(".parquet")]

    def _table(self, part: str, columns: list[str] | None) -> pa.Table:
        try:
            return pq.read_table(io.BytesIO(self.store.read_bytes(part)), columns=columns)
        except pa.ArrowException as error:
            raise DataError(f"trace store {self.store}/{part}: not a readable Parquet file: {error}") from error


def as_parquet(rows: list[TraceRow]) -> bytes:
    """The rows as one Parquet file, as the trace store holds it."""
    columns = {field.name: [_plain(getattr(row, field.name)) for row in rows] for field in fields(TraceRow)}
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pydict(columns, schema=TRACE_SCHEMA), sink, compression="zstd")
    return sink.getvalue()


def _within(rows: list[TraceRow], teacher_tokens: int) -> list[TraceRow]:
    taken, spent = [], 0
    for _, unit in itertools.groupby(rows, key=lambda row: row.unit):
        of_unit = list(unit)
        spent += sum(row.teacher_tokens for row in of_unit)
        if spent > teacher_tokens:
            break
        taken += of_unit
    return taken


def _plain(value):
    return value.tolist() if isinstance(value, np.ndarray) else value


_ARRAYS = {
    "token_ids": np.int32,
    "is_target": bool,
    "topk_ids": np.int32,
    "topk_logprobs": np.float32,
    "teacher_prompt": np.int32,
    "scores": np.float32,
}


def _row(values: dict) -> TraceRow:
    """A row as it was stored; a column that its part does not have is empty."""
    arrays = {name: np.asarray(values[name], kind) for name, kind in _ARRAYS.items() if name in values}
    for name in ("topk_ids", "topk_logprobs"):
        arrays[name] = arrays[name].reshape(-1, TOP_K)
    return TraceRow(**{**values, **arrays})
