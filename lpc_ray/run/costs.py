"""What an arm has cost, as the ledger shows it and its artifacts' manifests keep it; what was not measured is missing."""

import math
from typing import Any

from lpc_ray.artifacts.manifest import Manifest
from lpc_ray.config.recipe import GENERAL, TrainingRecipe
from lpc_ray.run.arms import Arm
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.trace_quality import induction_record
from lpc_ray.traces.store import TraceStore


def trace_costs(run: RunFolder, arm: Arm, training: TrainingRecipe) -> dict[str, Any]:
    """The traces an arm trains on: trace_generation_seconds (over all sessions; None: not measured), teacher_tokens,
    trace_rows, and dropped_rows (reason → rows).

    Where `training.teacher_tokens` takes part of the source's trace set, the counts are of that part, the seconds of all.
    """
    seconds: list[float | None] = []
    teacher_tokens, rows, dropped = 0, 0, dict[str, int]()
    for one in arm.trace_sets:
        budget = None if one.family == GENERAL else training.teacher_tokens
        counts = TraceStore(run.traces(one.id)).summary(budget)
        seconds.append(induction_record(run, one).get("seconds"))
        teacher_tokens += counts["teacher_tokens"]
        rows += counts["rows"]
        for reason, count in counts["dropped"].items():
            dropped[reason] = dropped.get(reason, 0) + count
    known = [part for part in seconds if part is not None]
    return {
        "trace_generation_seconds": sum(known) if len(known) == len(seconds) else None,
        "teacher_tokens": teacher_tokens,
        "trace_rows": rows,
        "dropped_rows": dropped,
    }


def measured(costs: dict[str, Any]) -> dict[str, Any]:
    """`costs` without what is None, for a manifest."""
    return {name: value for name, value in costs.items() if value is not None}


def recorded_costs(manifest: Manifest) -> dict[str, float]:
    """The numbers among what a manifest says of costs; of another's making, it may say anything."""
    return {
        name: value
        for name, value in manifest.costs.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    }
