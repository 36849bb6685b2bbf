"""Every table that one run's rows and curves give, for its page and for the page that compares runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from lpc_ray.config.shares import Threshold
from lpc_ray.report.ledger.row import Row
from lpc_ray.report.results.curves import Curve
from lpc_ray.report.statistics.break_even import BreakEven, break_even
from lpc_ray.report.statistics.difference import Contrast, contrasts
from lpc_ray.report.statistics.initializer_duels import DocumentVerdict, per_document
from lpc_ray.report.statistics.over_tasks import Aggregate, by_arm
from lpc_ray.report.statistics.pareto import AXES, ParetoRow, pareto
from lpc_ray.report.statistics.seed_spread import SeedSpread, spreads
from lpc_ray.report.statistics.steps_to_quality import StepsToQuality, steps_to_quality


@dataclass(frozen=True, slots=True)
class RunTables:
    """axes: those that rows are ranked by, task by task. aggregates, aggregate_places: empty for a run of one task."""

    axes: tuple[str, ...]
    rows: tuple[Row, ...]
    places: tuple[ParetoRow, ...]
    aggregates: tuple[Aggregate, ...]
    aggregate_places: tuple[ParetoRow, ...]
    thresholds: tuple[Threshold, ...]
    steps: tuple[StepsToQuality, ...]
    seeds: tuple[SeedSpread, ...]
    documents: tuple[DocumentVerdict, ...]
    break_evens: tuple[BreakEven, ...]
    contrasts: tuple[Contrast, ...]

    @property
    def unranked_axes(self) -> list[str]:
        return [axis for axis in AXES if axis not in self.axes]


def run_tables(
    rows: Sequence[Row],
    curves: Sequence[Curve],
    thresholds: Sequence[Threshold],
    axes: tuple[str, ...] = AXES,
) -> RunTables:
    """rows, curves: of one run; its tasks are kept apart. Seeds: only recipes of which more than one seed is known."""
    aggregates = by_arm(rows) if len({row.task for row in rows}) > 1 else []
    return RunTables(
        axes=axes,
        rows=tuple(rows),
        places=tuple(pareto(rows, axes)),
        aggregates=tuple(aggregates),
        aggregate_places=tuple(pareto([found.row for found in aggregates], axes)),
        thresholds=tuple(thresholds),
        steps=tuple(steps_to_quality(curves, thresholds)),
        seeds=tuple(spread for spread in spreads(rows) if len(spread.rows) > 1),
        documents=tuple(per_document(rows)),
        break_evens=tuple(break_even(rows)),
        contrasts=tuple(contrasts(rows)),
    )
