"""One roster: every watch once, the later file's word, in the order of the day."""

from pathlib import Path

import openpyxl

OUTPUT = Path("/root/roster.xlsx")


def rows():
    assert OUTPUT.exists(), "roster.xlsx was not written"
    return list(openpyxl.load_workbook(OUTPUT)["Watches"].iter_rows(values_only=True))


def test_the_header_stays():
    assert rows()[0] == ("Date", "Watch", "Keeper")


def test_the_watches_of_a_day_come_in_their_order():
    assert [row[1:] for row in rows() if row[0] == "2031-04-30"] == [
        ("First", "Berg"),
        ("Middle", "Dahl"),
        ("Morning", "Olsen"),
    ]


def test_the_later_file_wins():
    assert ("2031-05-01", "First", "(Olsen)") in rows()


def test_a_cancelled_watch_is_gone():
    assert OUTPUT.exists() and not [row for row in rows() if row[:2] == ("2031-05-01", "Middle")]


def test_there_are_six_watches_in_order_of_date():
    dates = [row[0] for row in rows()[1:]]
    assert len(dates) == 6 and dates == sorted(dates)
