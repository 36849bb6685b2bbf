"""Every gap has its number, and nothing else has changed."""

from pathlib import Path

import openpyxl
import pytest

OUTPUT = Path("/root/ledger_filled.xlsx")
GAPS = {"C2": 388, "E2": 430, "C3": 120, "B4": 210, "D4": 205, "E5": 301, "F5": 1641, "D6": 1301}


def sheet():
    assert OUTPUT.exists(), "ledger_filled.xlsx was not written"
    return openpyxl.load_workbook(OUTPUT)["Quarters"]


@pytest.mark.parametrize("cell", sorted(GAPS))
def test_a_gap_holds_the_number_that_the_sums_ask_for(cell):
    assert sheet()[cell].value == GAPS[cell]


def test_given_numbers_are_as_they_were():
    assert [sheet()[cell].value for cell in ("B2", "C5", "D3", "E4", "F2")] == [412, 512, 143, 222, 1685]


def test_the_heading_is_still_bold():
    assert sheet()["A1"].font.bold
