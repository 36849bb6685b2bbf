"""Schemas and grammars that would keep the engine's compiler busy for ever are the request's fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc_ray.serving.grammars import check_grammars
from lpc_ray.serving.refusal import Refusal


def _schema(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def _grammar(text):
    return {"structured_outputs": {"grammar": text}}


TREE = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
USABLE = [
    {},
    {"response_format": {"type": "text"}, "structured_outputs": None},
    _schema({"type": "object", "properties": {"a": {"type": "integer"}}}),
    _schema(TREE),
    _schema({"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"}),
    _schema({"$defs": {"a/b~c": {"type": "string"}}, "$ref": "#/$defs/a~1b~0c"}),
    {"structured_outputs": {"json": TREE}},
    _grammar('root ::= "a" root | "b"'),
    _grammar('root ::= item ("," item)*\nitem ::= [0-9]+ | "(" root ")"'),
    _grammar('root ::= "a"{0,3} "b"  # the end\n'),
    {"structured_outputs": {"grammar": "start: start A | A"}},
    {"structured_outputs": {"regex": "a+"}},
]
DEEP: dict = {"type": "null"}
for _ in range(200):
    DEEP = {"anyOf": [DEEP]}
UNUSABLE = [
    (_schema(DEEP), "nested too deeply"),
    (_schema({"$ref": "#"}), "leads back to itself"),
    (_schema({"anyOf": [{"$ref": "#"}, {"type": "null"}]}), "leads back to itself"),
    (_schema({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}), "leads back"),
    (_schema({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}), "leads back to itself"),
    (_schema({"$ref": "#/$defs/none"}), "leads to no schema"),
    (_schema({"$ref": "https://example.org/s.json"}), "wanted one within the schema"),
    ({"structured_outputs": {"json": {"$ref": "#"}}}, "leads back to itself"),
    (_grammar('root ::= root "a" | "b"'), "rule 'root' that begins with itself"),
    (_grammar('root ::= a\na ::= b "x"\nb ::= a "y" | "z"'), "begins with itself"),
    (_grammar('root ::= ("-")? root "a" | "b"'), "begins with itself"),
    (_grammar('root ::= empty root "a"\nempty ::= ""'), "begins with itself"),
    (_grammar("root ::= none"), "rule 'none' without a definition"),
    (_grammar('root ::= ("a"'), "not closed"),
    (_grammar('root ::= "a" )'), "not opened"),
    (_grammar("root ::= " + "(" * 5000), "nested too deeply"),
    (_grammar('"a" ::= b'), "wanted EBNF"),
    (_grammar('"a" a ::= b'), "wanted NAME ::="),
    (_grammar("root ::= a" + " " * 20_000), "wanted at most 16384"),
]


@pytest.mark.parametrize("body", USABLE)
def test_what_can_be_followed_is_taken(body):
    check_grammars(body)


@pytest.mark.parametrize(("body", "message"), UNUSABLE)
def test_what_has_no_end_is_refused_for_good(body, message):
    with pytest.raises(Refusal, match=message) as caught:
        check_grammars(body)
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (400, "unusable_grammar", None)


_JSON = st.recursive(
    st.none() | st.text(max_size=5) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$ref", "anyOf", "allOf", "properties", "items", "a"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(_JSON, st.text('ab ::=|()"[]*+?{}0,\n', max_size=40))
def test_whatever_is_sent_is_taken_or_refused(schema, grammar):
    for body in (_schema(schema), {"structured_outputs": {"json": schema, "grammar": grammar}}):
        try:
            check_grammars(body)
        except Refusal as refusal:
            assert refusal.status == 400
