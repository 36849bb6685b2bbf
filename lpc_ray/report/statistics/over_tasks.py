"""Arms over all tasks of one run: a sum is given only where an arm has a score on every task that can be scored.

A task on which nothing in the run has a score (no tests, a harness that fails its own reference) counts for no arm.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from lpc_ray.report.ledger.columns import over_tasks
from lpc_ray.report.ledger.figures import RecipeAxes
from lpc_ray.report.ledger.row import Row, arm_key, score_fields
from lpc_ray.report.statistics.two_sources import share_interval

RECIPE = tuple(one.name for one in fields(RecipeAxes) if one.name != "num_tokens")
MEANS, SUMS = over_tasks("mean"), over_tasks("sum")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One arm of one run over its tasks.

    row: passed and total summed over the tasks that have a score; its score and interval are None unless all have one. Its
    tokens are means over the tasks, its bytes, seconds and requests sums; what means nothing over tasks is None.
    mean_task_score, mean_low, mean_high: the mean of the tasks' scores and its 95 % interval over tasks (`two_sources`),
    None for one task; checks inside a task fail together, so that this interval, not that of the pooled checks, says what
    another set of tasks might give.
    """

    row: Row
    num_tasks: int
    uncounted_tasks: tuple[str, ...]
    mean_task_score: float | None
    mean_low: float | None
    mean_high: float | None


def by_arm(rows: Sequence[Row]) -> list[Aggregate]:
    """One entry per run and arm, in the order met. Two prefix sizes on one task are two arms.

    The best of several is left out: it may be another arm on every task.
    """
    rows = [row for row in rows if not row.is_best_of_several]
    sizes = Counter((row.run, row.task, *arm_key(row)) for row in rows)
    sized = {(run, *key) for (run, _, *key), count in sizes.items() if count > 1}
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        key = (row.run, *arm_key(row))
        groups.setdefault((*key, row.num_tokens if key in sized else None), []).append(row)
    tasks: dict[str | None, dict[str | None, None]] = {}
    for row in rows:
        if row.score is not None:
            tasks.setdefault(row.run, {})[row.task] = None
    return [_aggregate(group, list(tasks.get(group[0].run, {}))) for group in groups.values()]


def _aggregate(group: Sequence[Row], tasks: Sequence[str | None]) -> Aggregate:
    scored = {row.task: row for row in group if row.passed is not None and row.total and row.score is not None}
    uncounted = tuple(str(task) for task in tasks if task not in scored)
    passed = sum(row.passed or 0 for row in scored.values())
    total = sum(row.total or 0 for row in scored.values())
    scores = [row.score for row in scored.values() if row.score is not None]
    is_whole = bool(tasks) and not uncounted
    interval = share_interval(np.array(scores)) if is_whole and len(scores) > 1 else None
    conventions = {row.placeholders_counted for row in group}
    counts: dict[str, Any] = {"passed": passed, "total": total} if total else {"passed": None, "total": None}
    costs: dict[str, Any] = {name: _sum(group, name) for name in (*SUMS, *MEANS)}
    costs |= {name: costs[name] / len(group) for name in MEANS if costs[name] is not None}
    convention: dict[str, Any] = {"placeholders_counted": conventions.pop() if len(conventions) == 1 else "unknown"}
    uncounted_verdicts: Counter[str] = Counter()
    for scored_row in scored.values():
        uncounted_verdicts.update(scored_row.uncounted_verdicts or {})
    row = Row(
        kind=group[0].kind,
        name=_name(group),
        status=f"{len(scored)} of {len(tasks)} tasks",
        run=group[0].run,
        **{name: getattr(group[0], name) for name in RECIPE},
        uncounted_verdicts=dict(uncounted_verdicts) or None,
        **costs,
        **convention,
        **(score_fields(passed, total) if total and is_whole else counts),
    )
    return Aggregate(
        row=row,
        num_tasks=len(tasks),
        uncounted_tasks=uncounted,
        mean_task_score=sum(scores) / len(scores) if scores and is_whole else None,
        mean_low=float(interval[0]) if interval else None,
        mean_high=float(interval[1]) if interval else None,
    )


def _name(group: Sequence[Row]) -> str:
    """The arm's; its size is left out where every task has another."""
    first = group[0]
    is_one_size = len({row.num_tokens for row in group}) == 1
    return first.name if is_one_size else first.name.replace(f"-p{first.num_tokens}", "")


def _sum(group: Sequence[Row], name: str) -> Any:
    values = [getattr(row, name) for row in group]
    return None if None in values else sum(values)
