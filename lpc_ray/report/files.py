"""Strict JSON and CSV of the analysis' dataclasses."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any, Protocol

REPORT, REPORT_PAGE = "report.json", "report.html"  # of a run, which other rooms read and show


class FolderWriter(Protocol):
    """Where the files go; `lpc_ray.storage.Store` is one."""

    def write_bytes(self, relative: str, data: bytes) -> None: ...


def json_bytes(value: Any) -> bytes:
    """`value` as strict JSON: a number that is not finite becomes null, a dataclass a mapping, anything unknown its text."""
    return json.dumps(_strict(value), indent=1, allow_nan=False).encode()


def csv_bytes(kind: type, records: Sequence[Any]) -> bytes:
    """One line per record, the fields of dataclass `kind` as the header."""
    return csv_of([field.name for field in fields(kind)], [asdict(record) for record in records])


def csv_of(names: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> bytes:
    """One line per mapping of `names`, which are the header; None is an empty cell."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return sink.getvalue().encode("utf-8", "backslashreplace")


def _strict(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _strict(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_strict(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
