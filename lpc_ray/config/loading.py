"""A YAML file as a strict model: overrides applied, or one line that says what is wrong with it.

This module imports nothing heavy, so that a job can refuse a bad config at once.
"""

import difflib
import math
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from lpc_ray.errors import ConfigError


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"got {value!r} more than once, wanted each once")
    return values


Distinct = AfterValidator(_distinct)
Config = TypeVar("Config", bound=Strict)
MOST_VALUES = 100_000
_WANTED_NAME = "UTF-8: a file of another name is read from the folder above it"
_TWO_WAYS = re.compile(r"[-+]?0[0-9_]+|.*:.*")
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ud800-\udfff]")


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML whose mappings hold each key once, where plain YAML silently keeps the last value, and in which 1e-3 is a number
    as it is in JSON.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"got key {key!r} more than once", node.start_mark)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Raises: ConstructorError for 010, which is 8 in old YAML and 10 in new, and for 1:30, which is 90 in old YAML."""
        if _TWO_WAYS.fullmatch(node.value):
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"got {node.value}, which YAML reads in two ways, wanted it in quotes or as 10 is",
                node.start_mark,
            )
        is_whole = node.tag == "tag:yaml.org,2002:int"
        return self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)


for _kind in ("int", "float"):
    UniqueKeyLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", UniqueKeyLoader.construct_number)

UniqueKeyLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+\Z"),
    list("-+.0123456789"),
)


def read(path: str | Path, overrides: list[str] | None = None) -> dict[str, Any]:
    """The mapping in a YAML file, overridden and not yet checked."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from error
    try:
        raw = yaml.load(text, UniqueKeyLoader)
    except (yaml.YAMLError, ValueError) as error:  # a ValueError is a date that no calendar has
        raise ConfigError(f"config {path}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"config {path}: got YAML that is nested too deeply") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"config {path}: got {type(raw).__name__}, wanted a mapping of fields")
    for override in overrides or []:
        _apply(raw, override)
    if _num_values(raw, {}) > MOST_VALUES:
        raise ConfigError(
            f"config {path}: got aliases that stand for more than {MOST_VALUES} values, or for themselves"
        )
    return raw


def _num_values(value: Any, known: dict[int, float]) -> float:
    """How many values `value` holds once its YAML aliases are written out; infinitely many where one holds itself.

    known: by id, of those seen so far; each is looked at once, however often it stands there.
    """
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_num_values(one, known) for one in inner)
    return known[id(value)]


def validated(kind: type[Config], raw: dict[str, Any], where: str) -> Config:
    """`raw` as a config of that kind. Raises: ConfigError for the first thing wrong with it."""
    try:
        config = kind.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_explain(error, kind)}") from error
    for path, value, wanted in _taken_for_another_kind(raw, config.model_dump()):
        got = str(value).lower() if isinstance(value, bool) else repr(value)
        raise ConfigError(f"{where}: {path}: got {got}, wanted {wanted}")
    for path, value in _plain_values(raw):
        if isinstance(value, bytes):
            raise ConfigError(f"{where}: {path}: got bytes, wanted text")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where}: {path}: got {value}, wanted a finite number")
        if isinstance(value, str) and (odd := _NO_TEXT.search(value)) is not None:
            raise ConfigError(f"{where}: {path}: got {odd.group()!r}, a control character, wanted text")
    return config


def _taken_for_another_kind(raw: Any, kept: Any, path: str = "") -> Iterator[tuple[str, Any, str]]:
    """Where the config holds a number, truth or day that the file writes as something else: path, what it writes, what is
    wanted. A whole number may stand for any number.
    """
    if isinstance(kept, dict):
        for key in raw.keys() & kept.keys() if isinstance(raw, dict) else ():
            yield from _taken_for_another_kind(raw[key], kept[key], f"{path}.{key}".lstrip("."))
    elif isinstance(kept, list | tuple):
        values = raw if isinstance(raw, list | tuple) else [raw] if len(kept) == 1 else []
        for place, (value, held) in enumerate(zip(values, kept, strict=False)):
            yield from _taken_for_another_kind(value, held, f"{path}.{place}" if values is raw else path)
    elif isinstance(kept, bool):
        if not isinstance(raw, bool):
            yield path, raw, "true or false"
    elif isinstance(kept, int):
        if type(raw) is not int:
            yield path, raw, "a number" if isinstance(raw, bool) else "a whole number"
    elif isinstance(kept, float):
        if type(raw) not in (int, float):
            yield path, raw, "a number"
    elif isinstance(kept, date) and not isinstance(raw, date | str):
        yield path, raw, "a day such as 2024-07-26"


def _plain_values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All that is no mapping or list in a config, with its path; a key stands at its own."""
    if isinstance(value, dict):
        for key, inner in value.items():
            where = f"{path}.{key}".lstrip(".")
            yield where, key
            yield from _plain_values(inner, where)
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _plain_values(inner, f"{path}.{place}")
    else:
        yield path, value


def _apply(raw: dict[str, Any], override: str) -> None:
    if any("\udc80" <= one <= "\udcff" for one in override):
        raise ConfigError(f"override {override!r}: got a name that is not UTF-8, wanted {_WANTED_NAME}")
    key, separator, value = override.partition("=")
    if not separator or not all(key.split(".")):
        raise ConfigError(f"override {override!r}: wanted field.path=value")
    *parents, last = key.split(".")
    node: Any = raw
    for part in parents:
        node = node.setdefault(part, {}) if isinstance(node, dict) else node
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
    if not isinstance(node, dict):
        raise ConfigError(f"override {override!r}: {'.'.join(parents)} holds no fields")
    try:
        node[last] = yaml.load(value, UniqueKeyLoader)
    except (yaml.YAMLError, RecursionError) as error:
        why = f": {error.problem}" if isinstance(error, yaml.constructor.ConstructorError) else ""
        raise ConfigError(f"override {override[:80]!r}: the value is not YAML{why}") from error
    except ValueError as error:
        raise ConfigError(f"override {override[:80]!r}: {error}") from error


def _explain(error: ValidationError, kind: type[Strict]) -> str:
    """The first problem as one line; an unknown key or name is shown with the nearest valid one."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "top level"
    got = f"{where}: got {problem['input']!r}"
    context = problem.get("ctx", {})
    match problem["type"]:
        case "extra_forbidden":
            valid = _fields_at(problem["loc"][:-1], kind)
            return f"unknown key {where}{nearest(str(problem['loc'][-1]), valid)}"
        case "missing":
            return f"missing key {where}"
        case "value_error":
            message = problem["msg"].removeprefix("Value error, ")
            return f"{where}: {message}" if message.startswith("got ") else message
        case "literal_error" if problem["loc"][-1] == "[key]":  # pydantic's word for a mapping's key
            return f"unknown key {where.removesuffix('.[key]')}, wanted {context['expected']}"
        case "literal_error":
            valid = set(re.findall(r"'(.+?)'", context["expected"]))
            return f"{got}, wanted {context['expected']}{nearest(str(problem['input']), valid)}"
        case "tuple_type":
            return f"{got}, wanted a list"
        case "model_type" | "dict_type":
            return f"{got}, wanted a mapping"
        case "string_unicode":
            return f"{got}, wanted {_WANTED_NAME}"
        case "string_pattern_mismatch":
            return f"{got}, wanted a name that matches {context['pattern']}"
        case _:
            return f"{got}, wanted {re.sub(r'^.*? should (be|have) |,.*$| after validation', '', problem['msg'])}"


def _fields_at(location: tuple[int | str, ...], kind: type[Strict]) -> set[str]:
    model: Any = kind
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        inner = [kind for kind in get_args(annotation) if kind is not type(None)]
        annotation = inner[0] if inner else annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return set()
        model = annotation
    return set(model.model_fields)


def nearest(name: str, valid: set[str]) -> str:
    """A hint at the valid name that holds `name`, else at the one most like it; empty where none is."""
    close = [one for one in sorted(valid) if len(name) > 3 and name in one]
    close = close or difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
