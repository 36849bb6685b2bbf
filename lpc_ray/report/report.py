"""The report of a run: an HTML page that opens offline, JSON, CSV, and the main table for a terminal."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lpc_ray.config.shares import THRESHOLDS, Threshold
from lpc_ray.records import Case
from lpc_ray.report.files import REPORT, REPORT_PAGE, FolderWriter, csv_bytes, json_bytes
from lpc_ray.report.ledger.columns import columns_of
from lpc_ray.report.ledger.ledger import DIAGNOSIS, ArmRecord, BaselineRecord, rows
from lpc_ray.report.ledger.row import Row
from lpc_ray.report.pages.escape import visible
from lpc_ray.report.pages.render import html_page
from lpc_ray.report.statistics.pareto import ParetoRow
from lpc_ray.report.statistics.recipe_ranking import recipe_table
from lpc_ray.report.statistics.steps_to_quality import ConvergenceRow, convergence, curves
from lpc_ray.report.statistics.tables import run_tables
from lpc_ray.report.words.findings import findings
from lpc_ray.report.words.wording import unscored_words

TERMINAL_WIDTH, NAME_WIDTH, STATUS_WIDTH = 110, 34, 19
MISSING = "-"
REPORT_FILES = ("pareto.csv", "convergence.csv", REPORT, REPORT_PAGE)


@dataclass(frozen=True, slots=True)
class ReportScope:
    """The run and the task (the document, the skill) that its rows belong to. `source_tokens`: of the task's source."""

    run: str | None = None
    task: str | None = None
    source_tokens: int | None = None


def write_report(
    folder: FolderWriter,
    title: str,
    facts: Mapping[str, Any],
    arms: Sequence[ArmRecord],
    baselines: Sequence[BaselineRecord],
    cases: Sequence[Case] = (),
    scope: ReportScope | None = None,
    thresholds: Sequence[Threshold] = THRESHOLDS,
    induction: Sequence[Mapping[str, Any]] = (),
) -> list[Row]:
    """Write `REPORT_FILES`, the page last; return the rows they show. report.json can be merged with those of other runs.

    facts: what was run, as plain values, lists and nested mappings, shown in the order given.
    cases: adds questions and accepted answers to the appendix. thresholds: of the steps-to-quality table.
    induction: per trace set its family, induction_seed, seconds and quality (`induction_quality.InductionQuality`).
    Raises: DataError when two rows would have one name, ConfigError for a threshold that is no share.
    """
    scope = scope or ReportScope()
    table = [replace(row, source_tokens=scope.source_tokens) for row in rows(arms, baselines, scope.run, scope.task)]
    tables = run_tables(table, curves(arms), thresholds)
    words, recipes = findings(arms, baselines), recipe_table(arms).scores
    placed = [
        (row, {**asdict(row), "induction_seconds": row.trace_generation_seconds, "dominated_by": at.dominated_by})
        for row, at in zip(table, tables.places, strict=True)
    ]
    content = {
        "run": scope.run,
        "title": title,
        "facts": facts,
        "arms": [entry for row, entry in placed if row.kind == "arm"],
        "baselines": [entry for row, entry in placed if row.kind == "baseline"],
        "convergence": convergence(arms),
        "thresholds": thresholds,
        "steps_to_quality": tables.steps,
        "break_even": tables.break_evens,
        "documents": tables.documents,
        "recipes": recipes,
        "findings": [finding.text for finding in words],
        "induction": induction,
    }
    folder.write_bytes("pareto.csv", csv_bytes(ParetoRow, tables.places))
    folder.write_bytes("convergence.csv", csv_bytes(ConvergenceRow, convergence(arms)))
    folder.write_bytes(REPORT, json_bytes(content))
    folder.write_bytes(REPORT_PAGE, html_page(title, facts, arms, baselines, cases, tables, words, recipes, induction))
    return table


def printed_table(rows: Sequence[Row]) -> str:
    """One line per row where the names allow it, at most 110 columns wide, without colour codes; diagnoses stand below."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("arm or baseline", overflow="fold", min_width=NAME_WIDTH)
    table.add_column("status", max_width=STATUS_WIDTH)
    for heading in ("held-out", "score", "95 % CI", *(column.look.heading for column in columns_of("terminal"))):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, map(visible, _cells(row))))
    sink = io.StringIO()
    Console(file=sink, width=TERMINAL_WIDTH, color_system=None, force_terminal=False).print(table)
    drawn = "\n".join(line.rstrip() for line in sink.getvalue().splitlines()).strip("\n")
    unscored = [f"{visible(row.name)}: {unscored_words(row)}" for row in rows if row.uncounted_verdicts]
    below = [*(f"{visible(row.name)}: {visible(row.status)}" for row in rows if DIAGNOSIS in row.status), *unscored]
    return "\n".join([drawn, *([""] if below else []), *below])


def _cells(row: Row) -> tuple[str, ...]:
    interval = MISSING
    if row.score_low is not None and row.score_high is not None:
        interval = f"{100 * row.score_low:.1f}-{100 * row.score_high:.1f}"
    return (
        row.name,
        row.status.partition(DIAGNOSIS)[0],
        f"{row.passed}/{row.total}" if row.total else MISSING,
        MISSING if row.score is None else f"{100 * row.score:.1f} %",
        interval,
        *(column.text(row) or MISSING for column in columns_of("terminal")),
    )
