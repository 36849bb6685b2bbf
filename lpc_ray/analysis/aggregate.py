"""Arms over all tasks of one run: a sum is given only where an arm has a score on every task that can be scored.

A task on which nothing in the run has a score (no tests, a harness that fails its own reference) counts for no arm.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lpc_ray.analysis.results import arm_key
from lpc_ray.analysis.row import Row, score_fields
from lpc_ray.analysis.significance import bootstrap_mean


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One arm of one run over its tasks.

    row: passed and total summed over the tasks that have a score; its score and interval are None unless all have one. Its
    request and prefix tokens are means over the tasks, its bytes and seconds sums.
    mean_task_score, mean_low, mean_high: the mean of the tasks' scores and its bootstrap interval over tasks; checks inside a
    task fail together, so that this interval, not that of the pooled checks, says what another set of tasks might give.
    """

    row: Row
    num_tasks: int
    uncounted_tasks: tuple[str, ...]
    mean_task_score: float | None
    mean_low: float | None
    mean_high: float | None


def by_arm(rows: Sequence[Row]) -> list[Aggregate]:
    """One entry per run and arm, in the order met. Two prefix sizes on one task are two arms."""
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
    interval = bootstrap_mean(scores) if is_whole else None
    counts = {"passed": passed, "total": total} if total else {"passed": None, "total": None}
    row = replace(
        group[0],
        task=None,
        status=f"{len(scored)} of {len(tasks)} tasks",
        **{name: None for name in ("score", "score_low", "score_high", "best_step", "digest", "source_tokens")},
        **{
            name: _mean(group, name)
            for name in ("prompt_tokens", "generated_tokens", "request_tokens", "request_seconds")
        },
        **{name: _sum(group, name) for name in ("prefix_bytes", "teacher_tokens", "observed_requests")},
        **{
            name: _sum(group, name) for name in ("trace_generation_seconds", "teacher_pass_seconds", "training_seconds")
        },
        num_tokens=_mean(group, "num_tokens"),
        placeholders_counted=group[0].placeholders_counted
        if len({r.placeholders_counted for r in group}) == 1
        else "unknown",
        note="",
    )
    return Aggregate(
        row=replace(row, **(score_fields(passed, total) if total and is_whole else counts)),
        num_tasks=len(tasks),
        uncounted_tasks=uncounted,
        mean_task_score=sum(scores) / len(scores) if scores and is_whole else None,
        mean_low=interval[0] if interval else None,
        mean_high=interval[1] if interval else None,
    )


def _sum(group: Sequence[Row], name: str):
    values = [getattr(row, name) for row in group]
    return None if None in values else sum(values)


def _mean(group: Sequence[Row], name: str):
    total = _sum(group, name)
    return None if total is None else total / len(group)
