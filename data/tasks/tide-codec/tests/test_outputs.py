"""Lines are written and read as the format says; damaged ones are found."""

import json
from pathlib import Path

import pytest

ENCODED, DECODED = Path("/root/encoded.txt"), Path("/root/decoded.json")


def encoded():
    assert ENCODED.exists(), "encoded.txt was not written"
    return ENCODED.read_text().splitlines()


def decoded():
    assert DECODED.exists(), "decoded.json was not written"
    return json.loads(DECODED.read_text())


def test_there_is_a_line_for_each_station():
    assert len(encoded()) == 3


@pytest.mark.parametrize("line", ["QUAY|100|+3,-12|03", "NORTH|7||07", "LOCK|-40|+0,+52|29"])
def test_a_line_is_written_as_the_format_says(line):
    assert line in encoded()


def test_there_is_an_answer_for_each_line_received():
    assert len(decoded()) == 6


@pytest.mark.parametrize(
    ("number", "station", "levels"), [(0, "QUAY", [100, 103, 91]), (2, "NORTH", [7]), (4, "LOCK", [-40, -40, 12])]
)
def test_a_line_is_read(number, station, levels):
    assert decoded()[number] == {"station": station, "levels": levels}


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_damaged_line_is_found(number):
    assert decoded()[number] is None
