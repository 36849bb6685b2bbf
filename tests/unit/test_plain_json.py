"""JSON that only Python would read is refused wherever a file of somebody's is read."""

import json

import pytest

from lpc_ray import plain_json
from lpc_ray.artifacts.formats.untrusted import read_json
from lpc_ray.artifacts.manifest import parse_manifest
from lpc_ray.errors import ArtifactError, DataError, LPCError, StorageError
from lpc_ray.sources.text import parse_json
from lpc_ray.storage import Store
from tests.tiny import IDENTITY

ODD = {
    '{"a": NaN}': "got NaN, which is no number in JSON",
    '{"a": [-Infinity]}': "got -Infinity, which is no number in JSON",
    '{"a": 1e999}': "got 1e999, wanted a number that a float holds",
    '{"a": 1, "a": 2}': "got key 'a' more than once",
    '{"a": "\\ud800"}': "got a lone surrogate in a string, wanted Unicode text",
    "[" * 100_000: "got JSON that is nested too deeply",
}


@pytest.mark.parametrize("text", ODD)
def test_what_is_no_json_is_refused_by_every_reader(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    readers = {
        StorageError: lambda: Store(str(tmp_path)).read_json("a.json"),
        DataError: lambda: parse_json(text, "here"),
        ArtifactError: lambda: read_json(tmp_path / "a.json"),
    }
    for error, read in readers.items():
        with pytest.raises(error) as caught:
            read()
        assert ODD[text] in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("part", ["provenance", "costs", "verification"])
def test_a_manifest_whose_records_hold_no_number_is_refused(number, part):
    from dataclasses import asdict

    told = {"digest": "a" * 32, "identity": asdict(IDENTITY), "num_tokens": 4, "frozen_tokens": 1, "dtype": "float32"}
    text = json.dumps({**told, part: {"loss": {"last": [0.5]}}})
    assert getattr(parse_manifest(text, "here"), part) == {"loss": {"last": [0.5]}}
    with pytest.raises(LPCError, match=f"^here: not an LPC manifest: got {number}, w"):
        parse_manifest(text.replace("0.5", number), "here")


def test_what_is_json_is_read_as_python_does():
    text = '{"a": [1, -2.5e3, true, null, "é\\n"], "b": {}}'
    assert plain_json.parse(text) == plain_json.parse(text.encode()) == json.loads(text)
