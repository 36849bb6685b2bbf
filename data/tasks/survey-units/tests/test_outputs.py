"""Depths in metres by the survey's rules, in order of time."""

import csv
from pathlib import Path

import pytest

OUTPUT = Path("/root/survey_metric.csv")
DEPTHS = {"09:05": "7.13", "09:40": "6.09", "10:15": "3.81", "11:00": "5.17", "11:20": "4.40"}


def rows():
    assert OUTPUT.exists(), "survey_metric.csv was not written"
    return list(csv.DictReader(OUTPUT.read_text().splitlines()))


def test_the_columns_are_the_ones_asked_for():
    assert rows() and list(rows()[0]) == ["boat", "time", "depth_m"]


def test_void_soundings_are_left_out_and_the_rest_is_in_order_of_time():
    assert [row["time"] for row in rows()] == sorted(DEPTHS)


@pytest.mark.parametrize("time", sorted(DEPTHS))
def test_a_depth_is_in_metres(time):
    assert [row["depth_m"] for row in rows() if row["time"] == time] == [DEPTHS[time]]
