"""The summary is made of formulas over the items; the items are as they were."""

import re
from pathlib import Path

import openpyxl
import pytest

OUTPUT = Path("/root/stock_summary.xlsx")


def book():
    assert OUTPUT.exists(), "stock_summary.xlsx was not written"
    return openpyxl.load_workbook(OUTPUT)


def summary():
    assert "Summary" in book().sheetnames
    return book()["Summary"]


def test_the_header_is_the_one_asked_for():
    assert [cell.value for cell in summary()[1]][:3] == ["Store", "Pieces", "Value"]


def test_stores_come_in_alphabetical_order_and_then_the_total():
    assert [summary().cell(row, 1).value for row in range(2, 6)] == ["Centre", "North", "Quay", "Total"]


@pytest.mark.parametrize("row", [2, 3, 4])
def test_pieces_of_a_store_are_a_formula_over_the_items(row):
    formula = str(summary().cell(row, 2).value)
    assert re.match(r"=SUM(IFS?|PRODUCT)\(", formula) and "Items!" in formula


@pytest.mark.parametrize("row", [2, 3, 4])
def test_the_value_of_a_store_multiplies_count_and_price(row):
    formula = str(summary().cell(row, 3).value)
    assert formula.startswith("=SUMPRODUCT(") and "C$" in formula and "D$" in formula


def test_totals_add_the_three_stores():
    assert [summary().cell(5, column).value for column in (2, 3)] == ["=SUM(B2:B4)", "=SUM(C2:C4)"]


def test_the_items_are_as_they_were():
    assert book()["Items"].max_row == 11 and book()["Items"]["C6"].value == 6
