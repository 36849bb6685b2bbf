"""One entry of a result file, own or foreign, as a Row.

A field may go by several names (`NAMES`); a result is a cell (`17 / 19`, `0 / 1 invalid`), a count, or a bare share.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from lpc_ray.errors import DataError
from lpc_ray.records import Verdict
from lpc_ray.report.ledger.columns import COLUMNS
from lpc_ray.report.ledger.row import Row, score_fields
from lpc_ray.report.results.fields import MOST_CHECKS, kind, shown

CELL = re.compile(r"(\d{1,15})\s*/\s*(\d{1,15})(?:\s+(\w[\w -]*))?", re.ASCII)
NAMES = {
    "name": ("name", "arm", "label", "method"),
    "task": ("task", "task_id", "task_name", "dataset", "document"),
    "induction": ("induction", "family", "pi"),
    "passed": ("passed", "num_passed", "correct", "num_correct"),
    "total": ("total", "num_total", "num_tests", "num_cases"),
    "score": ("score", "accuracy", "pass_rate"),
    **{one.name: (one.name, *one.spellings) for one in COLUMNS if one.spellings},
}
NOT_SCORED = {*get_args(Verdict)} - {"pass", "fail"}
DERIVED = {"score_low", "score_high", "run", "missing", "is_on_frontier", "dominated_by"}
UNKNOWN = "unknown"
AGREEMENT = 5e-4


def row_of(
    entry: Mapping[str, Any], where: str, denominators: Mapping[str, int], **defaults: Any
) -> tuple[Row, set[str]]:
    """The row, and the names of the entry's keys that no field takes.

    denominators: the number of checks per task; a count over another number, unless it is labelled, has an unknown meaning.
    defaults: fields that the entry may override. Raises: DataError, naming `where`.
    """
    found, ignored = _renamed(entry, where)
    values = {**defaults, **{name: _parsed(name, value, where) for name, value in found.items() if value is not None}}
    cell = values.pop("result", None)
    values.update(_verdicts(values.pop("verdict", None), values, where))
    if not values.get("name"):
        values["name"] = "-".join(
            str(values[part]) for part in ("induction", "objective", "initializer") if values.get(part)
        )
    if not values["name"]:
        raise DataError(f"{where}: got no name, wanted one of {', '.join(NAMES['name'])}")
    values.setdefault("kind", "baseline" if values.get("num_tokens") == 0 else "arm")
    values.setdefault("status", "reported")
    if values.get("num_tokens") == 0:
        values["prefix_bytes"] = 0
    if "request_tokens" not in values and {"prompt_tokens", "generated_tokens"} <= set(values):
        values["request_tokens"] = values["prompt_tokens"] + values["generated_tokens"]
    values.update(_score(cell, values, where, denominators.get(values.get("task") or "")))
    return Row(**values), ignored


def _renamed(entry: Mapping[str, Any], where: str) -> tuple[dict[str, Any], set[str]]:
    known = (
        {field.name: (field.name,) for field in fields(Row)} | {"result": ("result",), "verdict": ("verdict",)} | NAMES
    )
    found: dict[str, Any] = {}
    for name, spellings in known.items():
        given = [spelling for spelling in spellings if spelling in entry]
        if len({str(entry[spelling]) for spelling in given}) > 1:
            raise DataError(f"{where}: got {' and '.join(given)} with different values, wanted one {name}")
        if given and name not in DERIVED:
            found[name] = entry[given[0]]
    spelled = {spelling for spellings in known.values() for spelling in spellings}
    return found, set(entry) - spelled - DERIVED


def _score(cell: str | None, values: dict[str, Any], where: str, denominator: int | None) -> dict[str, Any]:
    """The score fields of a row; a verdict that is no pass or fail, or an unexplained count, gives no score."""
    passed, total, label = _counts(cell, values, where)
    share = values.pop("score", None)
    verdict = label if label else values["status"] if values["status"] in NOT_SCORED else None
    if verdict:
        uncounted = values.get("uncounted_verdicts") or {verdict: 1}
        return {"passed": None, "total": None, "status": verdict, "uncounted_verdicts": uncounted}
    if passed is None or total is None:
        if share is not None and not 0 <= share <= 1:
            raise DataError(f"{where}: got a score of {share}, wanted a fraction of 1")
        return {"score": share, "passed": None, "total": None}
    if values["status"] == UNKNOWN or (denominator is not None and total != denominator):
        return {"passed": passed, "total": total, "status": UNKNOWN}
    if not 0 <= passed <= total or total == 0:
        raise DataError(f"{where}: got {passed} of {total}, wanted 0 <= passed <= total and total > 0")
    if share is not None and abs(share - passed / total) > AGREEMENT:
        raise DataError(f"{where}: got a score of {share} beside {passed} of {total}, wanted them to agree")
    cases = values.get("cases")
    if cases is not None and (sum(cases.values()), len(cases)) != (passed, total):
        counts = f"{sum(cases.values())} of {len(cases)}"
        raise DataError(f"{where}: got cases of which {counts} passed beside {passed} of {total}, wanted them to agree")
    return score_fields(passed, total)


def _counts(cell: str | None, values: dict[str, Any], where: str) -> tuple[int | None, int | None, str | None]:
    if cell is None:
        return values.get("passed"), values.get("total"), None
    matched = CELL.fullmatch(cell.strip())
    label = _spelled(matched.group(3)) if matched and matched.group(3) else None
    if matched is None or (label is not None and label not in NOT_SCORED):
        raise DataError(
            f"{where}: got the result {shown(cell)}, wanted `passed / total`, labelled where it is no score"
        )
    passed, total = int(matched.group(1)), int(matched.group(2))
    if max(passed, total) > MOST_CHECKS:
        raise DataError(f"{where}: got the result {shown(cell)}, wanted at most {MOST_CHECKS:,} checks")
    return passed, total, label


def _verdicts(verdict: str | None, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Status and uncounted verdicts in the project's spelling; a `verdict` that is no score stands above the status."""
    status = values.get("status")
    words = [word for word in (status, verdict) if word is not None and _spelled(word) in (*NOT_SCORED, UNKNOWN)]
    unscored = {_spelled(word) for word in words}
    if len(unscored) > 1:
        unscored.discard(UNKNOWN)
    if len(unscored) > 1:
        raise DataError(f"{where}: got status {shown(status)} and verdict {shown(verdict)}, wanted one")
    found: dict[str, Any] = {}
    if unscored:
        found["status"] = unscored.pop()
    elif status is None and verdict is not None:
        found["status"] = verdict
    uncounted = values.get("uncounted_verdicts")
    if uncounted is not None:
        counts: dict[str, int] = {}
        for word, count in uncounted.items():
            counts[_spelled(word)] = counts.get(_spelled(word), 0) + int(count)
        found["uncounted_verdicts"] = {word: count for word, count in counts.items() if count}
    return found


def _spelled(verdict: str) -> str:
    """`Verifier Error` as `verifier_error`."""
    return "_".join(verdict.casefold().replace("-", " ").split())


def _parsed(name: str, value: Any, where: str) -> Any:
    wanted, check = kind(name)
    if not check(value):
        raise DataError(f"{where}: got {name} = {shown(value)}, wanted {wanted}")
    return int(value) if wanted.startswith("a whole number") else value
