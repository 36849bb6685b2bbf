"""The module is imported by a process of its own, so that nothing in it can touch these tests."""

import json
import subprocess
import sys

import pytest

RUN = """
import json, sys
sys.path.insert(0, "/root")
import tide
function, arguments = json.loads(sys.argv[1])
try:
    print(json.dumps({"value": getattr(tide, function)(*arguments)}))
except ValueError:
    print(json.dumps({"refused": True}))
"""


def call(function, *arguments):
    command = [sys.executable, "-c", RUN, json.dumps([function, arguments])]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("station", "levels", "line"),
    [
        ("Quay", [100, 103, 91], "QUAY|100|+3,-12|03"),
        ("north", [7], "NORTH|7||07"),
        ("Lock", [-40, -40, 12], "LOCK|-40|+0,+52|29"),
    ],
)
def test_a_line_is_written_as_the_format_says(station, levels, line):
    assert call("encode", station, levels) == {"value": line}


def test_a_line_is_read_back():
    assert call("decode", "QUAY|100|+3,-12|03") == {"value": ["QUAY", [100, 103, 91]]}


def test_a_line_with_one_level_is_read_back():
    assert call("decode", "NORTH|7||07") == {"value": ["NORTH", [7]]}


@pytest.mark.parametrize("line", ["QUAY|100|+3,-12|04", "QUAY|100|+3", "QUAY|x||00"])
def test_a_damaged_line_is_refused(line):
    assert call("decode", line) == {"refused": True}
