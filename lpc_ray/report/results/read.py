"""Result files of earlier or foreign runs, read and merged by run, without running anything again.

A file is JSON: lpc_ray's own report.json, or the results.json of a comparison; tables keyed by run (`data/published/`); or a
list of results, bare or under `results` or `rows`. Files that name one run are merged and must agree; runs are never pooled.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from lpc_ray.errors import DataError
from lpc_ray.report.files import REPORT
from lpc_ray.report.ledger.row import Row, arm_key
from lpc_ray.report.results.curves import (
    UNKNOWN,
    MeasuredCurve,
    StatedCurve,
    measured_curves,
    merged_curves,
    stated_curves,
)
from lpc_ray.report.results.entry import row_of
from lpc_ray.report.results.fields import shown
from lpc_ray.report.results.schema import ResultFile, StatedRun, result_file
from lpc_ray.sources.text import parse_json, read_text

LABELS = ("name", "note")
TEMPORAL = ("made",)


@dataclass(frozen=True, slots=True)
class RunResults:
    """One run. `curves`: of its arms, the stated before the measured. `ignored`: keys of its files that no field takes."""

    run: str
    title: str
    facts: dict[str, Any]
    rows: tuple[Row, ...]
    curves: tuple[MeasuredCurve | StatedCurve, ...]
    ignored: tuple[str, ...]

    @property
    def tasks(self) -> list[str | None]:
        return list(dict.fromkeys(row.task for row in self.rows))


def read_results(paths: Iterable[str | Path]) -> list[RunResults]:
    """Every run in the files, in the order met.

    paths: a text `NAME=path` names the one run of its file. Raises: DataError for a file that is missing, malformed or at
    odds.
    """
    parts: dict[str, list[RunResults]] = {}
    named = [_split(path) for path in paths]
    for name, path in named:
        if [other.resolve() for _, other in named].count(path.resolve()) > 1:
            raise DataError(f"results {path}: got this file more than once")
        found = parse_results(parse_json(read_text(path, "results"), f"results {path}"), str(path))
        for part in found if name is None else [_renamed(name, found, path)]:
            parts.setdefault(part.run, []).append(part)
    return [_joined(run, found) for run, found in parts.items()]


def _split(path: str | Path) -> tuple[str | None, Path]:
    """(name, path) of `NAME=path`; a file that exists under the whole text, or a name with a slash, names no run."""
    name, equals, rest = str(path).partition("=")
    if not equals or "/" in name or Path(path).exists():
        return None, Path(path)
    if not name.strip() or not rest:
        raise DataError(f"results {path}: got no {'path' if name.strip() else 'name'}, wanted NAME=path")
    return name.strip(), Path(rest)


def _renamed(name: str, found: Sequence[RunResults], path: Path) -> RunResults:
    if len(found) != 1:
        raise DataError(f"results {path}: got the name {shown(name)} for {len(found)} runs, wanted a file of one run")
    (one,) = found
    return replace(one, run=name, title=f"{name}: {one.title}", rows=tuple(replace(row, run=name) for row in one.rows))


def parse_results(content: Any, where: str) -> list[RunResults]:
    """The runs in one parsed file: an entry may name its own."""
    file = result_file(content, where)
    whole = file.run or _name(Path(where))
    given = {"task": file.task, "placeholders_counted": file.placeholders_counted}
    defaults = {name: value for name, value in given.items() if value is not None}
    runs = {stated_run.run: stated_run for stated_run in file.runs}
    if len(runs) < len(file.runs):
        raise DataError(f"{where}, runs: got one run more than once, wanted each once")
    found: dict[str, list[Row]] = {name: [] for name in [*runs, *([whole] if file.curves or file.convergence else [])]}
    ignored = file.ignored
    for number, entry in enumerate(file.entries, start=1):
        run = entry.get("run") or whole
        if not isinstance(run, str):
            raise DataError(f"{where}, result {number}: got run = {shown(run)}, wanted text")
        row, unread = row_of(entry, f"{where}, result {number}", file.denominators, run=run, **defaults)
        found.setdefault(run, []).append(row)
        ignored |= unread
    named = {run: tuple(_named(_merged(rows, where), where)) for run, rows in found.items()}
    return [
        _run_results(file, whole, runs.get(run, StatedRun(run=run)), rows, ignored, where)
        for run, rows in named.items()
    ]


def _run_results(
    file: ResultFile, whole: str, stated: StatedRun, rows: tuple[Row, ...], ignored: set[str], where: str
) -> RunResults:
    """One run of a file: `whole` is the run that the file's own title and curves belong to."""
    is_whole = stated.run == whole
    at = f"{where}, run {stated.run}"
    return RunResults(
        run=stated.run,
        title=stated.title or (file.title if is_whole else None) or stated.run,
        facts={**(file.facts or {}), **stated.facts},
        rows=rows,
        curves=(
            *(stated_curves(file.curves, where) if is_whole else ()),
            *stated_curves(stated.curves, at),
            *(measured_curves(file.convergence, _statuses(file), where) if is_whole else ()),
            *measured_curves(stated.convergence, stated.ended, at),
        ),
        ignored=tuple(sorted(ignored | set(stated.ignored_keys))),
    )


def _statuses(file: ResultFile) -> dict[str, str]:
    """The status of each arm that has a point, in their order."""
    known = {arm.get("name"): str(arm.get("status")) for arm in file.arms}
    return {point.arm: known.get(point.arm, UNKNOWN) for point in file.convergence}


def _name(path: Path) -> str:
    """A run that does not say its name goes by its file, or by its folder where the file is a report."""
    return path.resolve().parent.name if path.name == REPORT else path.stem


def _merged(rows: Sequence[Row], where: str) -> list[Row]:
    found: dict[tuple, Row] = {}
    for row in rows:
        key = (row.task, *arm_key(row), row.num_tokens, row.best_step)
        found[key] = _agreed(found[key], row, where) if key in found else row
    return list(found.values())


def _agreed(first: Row, second: Row, where: str) -> Row:
    """One row that knows what either knows."""
    filled = {}
    for field in fields(Row):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if field.name not in LABELS and one is not None and other is not None and one != other:
            raise DataError(
                f"{where}: got {field.name} {shown(one)} and {shown(other)} for {first.name} on {first.task}, wanted one"
            )
        filled[field.name] = other if one is None else one
    return replace(first, **filled)


def _named(rows: Sequence[Row], where: str) -> list[Row]:
    """Rows of one task and one name are distinguished by prefix size, as the ledger does."""
    names = [(row.task, row.name) for row in rows]
    sized = [
        replace(row, name=f"{row.name}-p{row.num_tokens}") if names.count(name) > 1 else row
        for row, name in zip(rows, names, strict=True)
    ]
    once = [(row.task, row.name) for row in sized]
    twice = sorted({name for task, name in once if once.count((task, name)) > 1})
    if twice:
        raise DataError(f"{where}: got more than one result named {', '.join(twice)} for one task, wanted each once")
    return sized


def _joined(run: str, parts: Sequence[RunResults]) -> RunResults:
    """Several files of one run as one."""
    if len(parts) == 1:
        return parts[0]
    where = f"run {run}"
    try:
        rows = _named(_merged([row for part in parts for row in part.rows], where), where)
        curves = merged_curves([curve for part in parts for curve in part.curves], where)
        facts = _joined_facts(parts, where)
    except DataError as error:
        files = f"these {len(parts)} files call their run {run}; NAME=path gives a file's run another name"
        raise DataError(f"{error} ({files})") from error
    return RunResults(
        run=run,
        title=parts[0].title,
        facts=facts,
        rows=tuple(rows),
        curves=tuple(sorted(curves, key=lambda curve: isinstance(curve, MeasuredCurve))),
        ignored=tuple(sorted({key for part in parts for key in part.ignored})),
    )


def _joined_facts(parts: Sequence[RunResults], where: str) -> dict[str, Any]:
    """The facts of all files of a run, of `TEMPORAL` ones the last.

    Files that share a task must agree on every other fact that both state, for then they may be two runs of one name. Files
    of different tasks may differ, in document or cases for example: such a fact becomes a mapping of tasks to values. A file
    without rows may be of any task, and so shares all. Raises: DataError.
    """
    for one, other in combinations(parts, 2):
        if one.rows and other.rows and not set(one.tasks) & set(other.tasks):
            continue
        for key, value in one.facts.items():
            if key not in TEMPORAL and other.facts.get(key, value) != value:
                both = f"{shown(value)} and {shown(other.facts[key])}"
                raise DataError(f"{where}: got the fact {shown(key)} as {both}, wanted one")
    joined: dict[str, Any] = {}
    for key in dict.fromkeys(key for part in parts for key in part.facts):
        by_task = {_task_words(part): part.facts[key] for part in parts if key in part.facts}
        *others, last = by_task.values()
        joined[key] = last if key in TEMPORAL or all(value == last for value in others) else by_task
    return joined


def _task_words(part: RunResults) -> str:
    return ", ".join(task or "no task" for task in part.tasks)
