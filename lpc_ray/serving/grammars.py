"""Schemas and grammars that no reply can follow, found before the engine has them: its compiler would not come to an end."""

import re
from collections.abc import Iterator
from typing import Any

from lpc_ray.serving.refusal import Refusal

MOST_NESTED, MOST_CHARACTERS = 100, 16_384
_ALTERNATIVES = ("allOf", "anyOf", "oneOf")
_TOKEN = re.compile(
    r"(?P<space>\s+|#[^\n]*)|(?P<define>[A-Za-z_][\w.-]*\s*::=)|(?P<name>[A-Za-z_][\w.-]*)|(?P<text>\"(?:\\.|[^\"\\\n])*\"|"
    r"\[(?:\\.|[^\]\\])*\])|(?P<repeat>[*+?]|\{\d+(?:\s*,\s*\d*)?\})|(?P<mark>[()|.])"
)
Node = tuple[str, Any]  # (name, rule), (text, is empty), (any, alternatives), (all, parts), (maybe, part)


def check_grammars(body: dict[str, Any]) -> None:
    """Raises: Refusal 400 for a JSON schema whose references lead nowhere or in a circle without a value between, and for a
    grammar with a rule that begins with itself.
    """
    given = body.get("response_format")
    schema = given.get("json_schema") if isinstance(given, dict) else None
    if isinstance(schema, dict) and isinstance(schema.get("schema"), dict):
        _check_schema(schema["schema"], "response_format.json_schema.schema")
    outputs = body.get("structured_outputs")
    if isinstance(outputs, dict):
        if isinstance(outputs.get("json"), dict):
            _check_schema(outputs["json"], "structured_outputs.json")
        if isinstance(outputs.get("grammar"), str) and "::=" in outputs["grammar"]:
            _check_grammar(outputs["grammar"], "structured_outputs.grammar")


def _check_schema(root: dict[str, Any], where: str) -> None:
    done: set[int] = set()
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict) and id(node) not in done:
            _check_ends(node, root, where, (), done)
        waiting += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _check_ends(node: dict[str, Any], root: dict[str, Any], where: str, path: tuple[int, ...], done: set[int]) -> None:
    """Follows what stands for `node` itself, which must not be `node` again."""
    if id(node) in path:
        raise _unusable(where, "got a $ref that leads back to itself without a value between")
    if len(path) > MOST_NESTED:
        raise _unusable(where, "got references and alternatives that are nested too deeply")
    if id(node) in done:
        return
    for inner in _same_place(node, root, where):
        _check_ends(inner, root, where, (*path, id(node)), done)
    done.add(id(node))


def _same_place(node: dict[str, Any], root: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    if isinstance(node.get("$ref"), str):
        yield _target(node["$ref"], root, where)
    for name in _ALTERNATIVES:
        members = node.get(name)
        yield from (one for one in members if isinstance(one, dict)) if isinstance(members, list) else ()


def _target(reference: str, root: dict[str, Any], where: str) -> dict[str, Any]:
    if not reference.startswith("#"):
        raise _unusable(where, f"got $ref {reference[:100]!r}, wanted one within the schema, which begins with #")
    found: Any = root
    for part in filter(None, reference[1:].split("/")):
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise _unusable(where, f"got $ref {reference[:100]!r}, which leads to no schema")
    return found


def _check_grammar(text: str, where: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise _unusable(where, f"got {len(text)} characters, wanted at most {MOST_CHARACTERS}")
    rules = _rules(text, where)
    empty: set[str] = set()
    while more := {name for name, rule in rules.items() if name not in empty and _may_be_empty(rule, empty)}:
        empty |= more
    begins = {name: set(_first_names(rule, empty)) for name, rule in rules.items()}
    for name in begins:
        seen, waiting = set[str](), set(begins[name])
        while waiting:
            one = waiting.pop()
            if one not in rules:
                raise _unusable(where, f"got rule {one[:100]!r} without a definition")
            if one not in seen:
                seen.add(one)
                waiting |= begins[one]
        if name in seen:
            raise _unusable(where, f"got rule {name[:100]!r} that begins with itself (left recursion)")


def _rules(text: str, where: str) -> dict[str, Node]:
    """Name → rule of a grammar in EBNF, as xgrammar reads it."""
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unusable(where, f"got {text[at : at + 20]!r}, wanted EBNF")
        if match.lastgroup != "space":
            tokens.append((match.lastgroup or "", match[0]))
        at = match.end()
    rules, number = {}, 0
    while number < len(tokens):
        kind, name = tokens[number]
        if kind != "define":
            raise _unusable(where, f"got {name[:20]!r}, wanted NAME ::= and a rule")
        rule, number = _alternatives(tokens, number + 1, where, 0)
        rules[name.removesuffix("::=").strip()] = rule
    return rules


def _alternatives(tokens: list[tuple[str, str]], at: int, where: str, depth: int) -> tuple[Node, int]:
    if depth > MOST_NESTED:
        raise _unusable(where, "got brackets that are nested too deeply")
    found: list[Node] = []
    while True:
        parts: list[Node] = []
        while at < len(tokens) and tokens[at][0] != "define" and tokens[at][1] not in ("|", ")"):
            kind, text = tokens[at]
            if kind == "repeat" and parts:
                parts[-1] = ("maybe", parts[-1]) if text in ("*", "?") or text.startswith("{0") else parts[-1]
                at += 1
            elif text == "(":
                inner, at = _alternatives(tokens, at + 1, where, depth + 1)
                if at >= len(tokens) or tokens[at][1] != ")":
                    raise _unusable(where, "got a bracket that is not closed")
                parts.append(inner)
                at += 1
            else:
                parts.append(("name", text) if kind == "name" else ("text", text == '""'))
                at += 1
        found.append(("all", parts))
        if at >= len(tokens) or tokens[at][1] != "|":
            break
        at += 1
    if depth == 0 and at < len(tokens) and tokens[at][1] == ")":
        raise _unusable(where, "got a bracket that was not opened")
    return ("any", found), at


def _may_be_empty(node: Node, empty: set[str]) -> bool:
    kind, held = node
    match kind:
        case "name":
            return held in empty
        case "text":
            return held
        case "maybe":
            return True
        case "any":
            return any(_may_be_empty(one, empty) for one in held)
        case _:
            return all(_may_be_empty(one, empty) for one in held)


def _first_names(node: Node, empty: set[str]) -> Iterator[str]:
    """The rules with which `node` may begin."""
    kind, held = node
    if kind == "name":
        yield held
    elif kind == "maybe":
        yield from _first_names(held, empty)
    elif kind in ("any", "all"):
        for one in held:
            yield from _first_names(one, empty)
            if kind == "all" and not _may_be_empty(one, empty):
                return


def _unusable(where: str, what: str) -> Refusal:
    return Refusal(400, "unusable_grammar", f"{where}: {what}", param=where.partition(".")[0])
