"""Several runs beside each other: one page, JSON and CSV. Runs are never pooled; the JSON can be merged again."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from markupsafe import Markup

from lpc_ray.config.shares import THRESHOLDS, Threshold
from lpc_ray.errors import DataError
from lpc_ray.report.files import FolderWriter, csv_bytes, csv_of, json_bytes
from lpc_ray.report.ledger.columns import Cells, columns_of
from lpc_ray.report.ledger.row import Row, arm_key, off_source_rows
from lpc_ray.report.pages.plots import pareto_plot
from lpc_ray.report.pages.render import rendered
from lpc_ray.report.results.curves import written_curves
from lpc_ray.report.results.read import RunResults
from lpc_ray.report.statistics.pareto import ParetoRow, shared_axes, unranked
from lpc_ray.report.statistics.tables import RunTables, run_tables

COUNTS, MEANS = ("passed", "total", "score"), ("mean_task_score", "mean_low", "mean_high")
COMPARISON_FILES = ("results.json", "results.csv", "arms.csv", "comparison.html")


@dataclass(frozen=True, slots=True)
class Section:
    """One run of the page, at place `number`."""

    number: int
    results: RunResults
    tables: RunTables

    @property
    def columns(self) -> list[Cells]:
        """Of the costs that at least one row of the run has."""
        return columns_of("comparison", self.tables.rows)

    @property
    def has_places(self) -> bool:
        return len(self.tables.axes) > 1

    @property
    def places(self) -> Sequence[ParetoRow]:
        return self.tables.places if self.has_places else unranked(self.tables.places)

    @property
    def aggregate_places(self) -> Sequence[ParetoRow]:
        return self.tables.aggregate_places if self.has_places else unranked(self.tables.aggregate_places)

    @property
    def off_source(self) -> list[Row]:
        return off_source_rows(self.tables.rows)

    @property
    def conventions(self) -> list[str]:
        """Whether rows with a prefix count its placeholders."""
        return sorted({row.placeholders_counted for row in self.tables.rows if row.prefix_tokens != 0})

    def rows_of(self, task: str | None) -> list[tuple[Row, ParetoRow]]:
        pairs = zip(self.tables.rows, self.places, strict=True)
        return [(row, place) for row, place in pairs if row.task == task]

    def plots(self) -> dict[str, Markup]:
        """Task → figure, where two rows or more have a score and request tokens."""
        drawn = {}
        for index, task in enumerate(self.results.tasks):
            pairs = self.rows_of(task)
            if sum(row.score is not None and row.request_tokens is not None for row, _ in pairs) > 1:
                rows, places = [row for row, _ in pairs], [place for _, place in pairs]
                title = f"{task or self.results.run}: score against tokens per request"
                drawn[str(task)] = Markup(pareto_plot(places, rows, f"pareto-{self.number}-{index}", title))
        return drawn


@dataclass(frozen=True, slots=True)
class Shared:
    """One arm on one task that several runs have, with its row in each; nothing is averaged over them."""

    task: str | None
    name: str
    rows: tuple[Row, ...]


def write_comparison(
    folder: FolderWriter, title: str, runs: Sequence[RunResults], thresholds: Sequence[Threshold] = THRESHOLDS
) -> None:
    """Write `COMPARISON_FILES`, the page last. Each run's rows are ranked by the axes that all of them know.

    Raises: DataError when there is nothing to compare, ConfigError for a threshold that is no share.
    """
    if not runs:
        raise DataError("comparison: got no run, wanted at least one")
    sections = sections_of(runs, thresholds)
    places = [place for section in sections for place in section.places]
    shared = shared_arms([row for found in runs for row in found.rows])
    folder.write_bytes("results.json", json_bytes({"title": title, **merged(sections)}))
    folder.write_bytes("results.csv", csv_bytes(ParetoRow, places))
    folder.write_bytes("arms.csv", _arms_csv(sections))
    folder.write_bytes("comparison.html", rendered("comparison.html.j2", title=title, sections=sections, shared=shared))


def sections_of(runs: Sequence[RunResults], thresholds: Sequence[Threshold] = THRESHOLDS) -> list[Section]:
    return [
        Section(number, found, run_tables(found.rows, found.curves, thresholds, shared_axes(found.rows)))
        for number, found in enumerate(runs)
    ]


def merged(sections: Sequence[Section]) -> dict[str, Any]:
    """What results.json holds beside its title: `rows` and, for each run, its title, facts and curves, all of which
    can be read and merged again, and its tables.
    """
    rows = [
        asdict(row) | {"is_on_frontier": place.is_on_frontier, "dominated_by": place.dominated_by}
        for section in sections
        for row, place in zip(section.tables.rows, section.places, strict=True)
    ]
    described = [
        {
            "run": section.results.run,
            "title": section.results.title,
            "facts": section.results.facts,
            "ignored_keys": section.results.ignored,
            **written_curves(section.results.curves),
            "ranked_by": section.tables.axes,
            "by_arm": [
                asdict(found) | {"dominated_by": place.dominated_by}
                for found, place in zip(section.tables.aggregates, section.aggregate_places, strict=True)
            ],
            "steps_to_quality": section.tables.steps,
            "documents": section.tables.documents,
            "break_even": section.tables.break_evens,
            "noise": [
                {"task": contrast.leader.task, "leader": contrast.leader.name, "others": contrast.others}
                for contrast in section.tables.contrasts
            ],
        }
        for section in sections
    ]
    return {"rows": rows, "runs": described}


def shared_arms(rows: Sequence[Row]) -> list[Shared]:
    """The arms and baselines that more than one run has scored on one task, in the order met."""
    groups: dict[tuple, dict[str | None, Row]] = {}
    for row in rows:
        if row.total:
            groups.setdefault((row.task, *arm_key(row), row.num_tokens or None), {}).setdefault(row.run, row)
    return [
        Shared(key[0], next(iter(group.values())).name, tuple(group.values()))
        for key, group in groups.items()
        if len(group) > 1
    ]


def _arms_csv(sections: Sequence[Section]) -> bytes:
    """A line per arm over all tasks of a run that has several (`over_tasks.Aggregate`, flat)."""
    costs = columns_of("arms.csv")
    lines = [
        {
            "run": found.row.run,
            "arm": place.name,
            "tasks": found.row.status,
            **{name: getattr(found.row, name) for name in COUNTS},
            **{name: getattr(found, name) for name in MEANS},
            **{cost.look.heading: getattr(found.row, cost.name) for cost in costs},
            "placeholders_counted": found.row.placeholders_counted,
            "dominated_by": place.dominated_by,
        }
        for section in sections
        for found, place in zip(section.tables.aggregates, section.aggregate_places, strict=True)
    ]
    head = ("run", "arm", "tasks", *COUNTS, *MEANS, *(cost.look.heading for cost in costs))
    return csv_of([*head, "placeholders_counted", "dominated_by"], lines)
