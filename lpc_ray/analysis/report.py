"""The report of a run: an HTML page that opens offline, JSON, CSV, and the main table for a terminal."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Protocol

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lpc_ray.analysis.convergence import ConvergenceRow, convergence
from lpc_ray.analysis.findings import Finding, findings
from lpc_ray.analysis.ledger import ArmRecord, BaselineRecord, rows
from lpc_ray.analysis.page import html_page
from lpc_ray.analysis.pareto import ParetoRow, pareto
from lpc_ray.analysis.row import Row
from lpc_ray.records import Case

TERMINAL_WIDTH, NAME_WIDTH, STATUS_WIDTH = 110, 34, 19
MISSING = "-"


class FolderWriter(Protocol):
    """Where the files go; `lpc_ray.storage.Store` is one."""

    def write_bytes(self, relative: str, data: bytes) -> None: ...


def write_report(
    folder: FolderWriter,
    title: str,
    facts: Mapping[str, Any],
    arms: Sequence[ArmRecord],
    baselines: Sequence[BaselineRecord],
    cases: Sequence[Case] = (),
    induction: Sequence[Mapping[str, Any]] = (),
) -> list[Row]:
    """Write pareto.csv, convergence.csv, report.json and, last, report.html; return the rows they show.

    facts: what was run, as plain values, lists and nested mappings, shown in the order given.
    cases: adds questions and accepted answers to the appendix.
    induction: per trace set its family, induction_seed, seconds and quality (`induction_quality.InductionQuality`).
    Raises: DataError when two rows would have one name.
    """
    table = rows(arms, baselines)
    places = list(zip(table, pareto(table), strict=True))
    words = findings(arms, baselines)
    folder.write_bytes("pareto.csv", _csv(ParetoRow, [place for _, place in places]))
    folder.write_bytes("convergence.csv", _csv(ConvergenceRow, convergence(arms)))
    folder.write_bytes("report.json", _json(title, facts, places, words, induction))
    folder.write_bytes("report.html", html_page(title, facts, arms, baselines, cases, places, words, induction))
    return table


def printed_table(rows: Sequence[Row]) -> str:
    """One line per row where the names allow it, at most 110 columns wide, without colour codes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("arm or baseline", overflow="fold", min_width=NAME_WIDTH)
    table.add_column("status", max_width=STATUS_WIDTH)
    for heading in ("held-out", "score", "95 % CI", "step", "tune", "tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, _cells(row)))
    sink = io.StringIO()
    Console(file=sink, width=TERMINAL_WIDTH, color_system=None, force_terminal=False).print(table)
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()).strip("\n")


def _cells(row: Row) -> tuple[str, ...]:
    interval = MISSING
    if row.score_low is not None and row.score_high is not None:
        interval = f"{100 * row.score_low:.1f}-{100 * row.score_high:.1f}"
    return (
        row.name,
        row.status,
        _part(row.passed, row.total),
        MISSING if row.score is None else f"{100 * row.score:.1f} %",
        interval,
        MISSING if row.best_step is None else str(row.best_step),
        _part(row.tune_passed, row.tune_total),
        MISSING if row.request_tokens is None else f"{row.request_tokens:,.0f}",
    )


def _part(passed: int | None, total: int | None) -> str:
    return f"{passed}/{total}" if total else MISSING


def _json(
    title: str,
    facts: Mapping[str, Any],
    table: Sequence[tuple[Row, ParetoRow]],
    words: Sequence[Finding],
    induction: Sequence[Mapping[str, Any]],
) -> bytes:
    entries = [asdict(row) | {"dominated_by": place.dominated_by} for row, place in table]
    report = {
        "title": title,
        "facts": facts,
        "arms": [entry for entry in entries if entry["kind"] == "arm"],
        "baselines": [entry for entry in entries if entry["kind"] == "baseline"],
        "findings": [finding.text for finding in words],
        "induction": induction,
    }
    return json.dumps(_strict(report), indent=1, allow_nan=False).encode()


def _strict(value: Any) -> Any:
    """`value` as strict JSON can hold it: a number that is not finite becomes null, anything unknown its text."""
    if isinstance(value, Mapping):
        return {str(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_strict(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _csv(kind: type, records: Sequence[Any]) -> bytes:
    """One line per record, the fields of dataclass `kind` as the header; None is an empty cell."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, [field.name for field in fields(kind)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(record) for record in records)
    return sink.getvalue().encode()
