"""The open items, each once, with year, owner and order as the style of the minutes says."""

import json
from pathlib import Path

OUTPUT = Path("/root/actions.json")


def items():
    assert OUTPUT.exists(), "actions.json was not written"
    return json.loads(OUTPUT.read_text())


def due(text):
    return [item["due"] for item in items() if item["text"] == text]


def test_there_are_four_open_items():
    assert len(items()) == 4


def test_items_have_the_four_keys():
    assert items() and all(set(item) == {"meeting", "owner", "due", "text"} for item in items())


def test_done_items_are_left_out():
    assert OUTPUT.exists() and not [item for item in items() if item["text"] in ("return the drill", "sweep the hall")]


def test_a_date_later_in_the_year_keeps_the_year():
    assert due("order the paint") == ["2031-04-09"]


def test_a_date_before_the_meeting_is_of_the_next_year():
    assert due("renew the licence") == ["2032-01-15"]


def test_a_moved_item_counts_once_with_its_new_date():
    assert due("ask the insurer about the jetty") == ["2031-12-02"]


def test_items_are_ordered_by_date_and_owner():
    assert [item["owner"] for item in items()] == ["Ines", "Ana", "Bo", "Tomas"]
