"""What a field of a result file has to be, in words and as a test. Bounds keep every figure printable and drawable."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args

from lpc_ray.report.ledger.columns import COLUMNS
from lpc_ray.report.ledger.row import Convention, Row

LEAST, MOST = 1e-9, 1e15
MOST_CHECKS = 10**9
KINDS = ("arm", "baseline")
SHOWN = 60
ANNOTATIONS = {one.name: one.type for one in fields(Row)}
Kind = tuple[str, Callable[[Any], bool]]
WHOLE: Kind = ("a whole number from 0 to 1e15", lambda value: _is_amount(value) and float(value).is_integer())
CHECKS: Kind = ("a whole number from 0 to 1e9", lambda value: WHOLE[1](value) and value <= MOST_CHECKS)
AMOUNT: Kind = (
    "a number of at least 0, at most 1e15 and, above 0, at least 1e-9",
    lambda value: _is_amount(value) and (value == 0 or value >= LEAST),
)
BY_NAME: dict[str, Kind] = {
    "kind": (f"one of {', '.join(KINDS)}", lambda value: value in KINDS),
    "placeholders_counted": (f"one of {', '.join(get_args(Convention))}", lambda value: value in get_args(Convention)),
    "passed": CHECKS,
    "total": CHECKS,
    "cases": (
        "a mapping of true and false",
        lambda value: isinstance(value, dict) and all(isinstance(one, bool) for one in value.values()),
    ),
    "figures": ("a mapping of finite numbers", lambda value: _holds(value, lambda one: _is_finite(one))),
}


def _within(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: _is_finite(value) and least <= value <= most


BY_NAME |= {one.name: (one.bounds[0], _within(*one.bounds[1:])) for one in COLUMNS if one.bounds}


def kind(name: str) -> Kind:
    """Of a Row's field, or of `result` or `verdict`, which are text."""
    if name in BY_NAME:
        return BY_NAME[name]
    annotation = str(ANNOTATIONS.get(name, str))
    if "dict" in annotation:
        return "a mapping of counts", lambda value: _holds(value, CHECKS[1])
    if "bool" in annotation:
        return "true or false", lambda value: isinstance(value, bool)
    if "int" in annotation:
        return WHOLE
    if "float" in annotation:
        return AMOUNT
    return "text", lambda value: isinstance(value, str)


def shown(value: Any) -> str:
    """A user's value for an error message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -MOST <= value <= MOST and math.isfinite(value)


def _is_amount(value: Any) -> bool:
    return _is_finite(value) and value >= 0


def _holds(value: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(check, value.values()))
