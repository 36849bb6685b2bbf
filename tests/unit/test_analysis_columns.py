"""A column is declared once: every table that names it shows it."""

from dataclasses import fields, replace

import pytest

from lpc_ray.report.comparison import write_comparison
from lpc_ray.report.ledger import columns
from lpc_ray.report.ledger.columns import COLUMNS, Column, Shown, columns_of, over_tasks
from lpc_ray.report.ledger.figures import Costs, OffSource, RecipeAxes
from lpc_ray.report.ledger.row import Row
from lpc_ray.report.report import printed_table
from lpc_ray.report.results.read import read_results
from lpc_ray.storage import Store

ROW = Row(kind="arm", name="a", status="finished", request_tokens=40.0, request_seconds=0.25)


def test_every_column_is_a_figure_of_a_row():
    assert [column.name for column in COLUMNS if not hasattr(ROW, column.name)] == []
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


def test_every_shared_figure_but_the_recipes_names_and_seeds_has_a_column():
    shared = {one.name for part in (Costs, OffSource) for one in fields(part)} | {"num_tokens"}
    assert shared <= {column.name for column in COLUMNS}
    assert {one.name for one in fields(RecipeAxes)} <= {one.name for one in fields(Row)}


@pytest.mark.parametrize(
    "look, value, text",
    [
        (Shown("x"), 1234567, "1,234,567"),
        (Shown("x", "{:,.2f}", factor=1e-6), 11_796_480, "11.80"),
        (Shown("x", "{:+.1f} points", factor=100), -0.545, "-54.5 points"),
        (Shown("x", "{:.1f} %", factor=100), 0, "0.0 %"),
        (Shown("x", lambda counts: f"{len(counts)} reasons"), {"a": 1}, "1 reasons"),
        (Shown("x"), None, None),
    ],
)
def test_a_value_is_shown_by_its_columns_look(look, value, text):
    assert look.text(value) == text


def test_a_table_of_rows_leaves_out_what_no_row_has():
    assert [column.name for column in columns_of("comparison", [ROW])] == ["request_tokens"]
    free = replace(ROW, expected_requests=0)
    assert [column.name for column in columns_of("comparison", [ROW, free])] == ["request_tokens", "expected_requests"]


def test_one_declaration_puts_a_column_into_every_table_it_names(monkeypatch, tmp_path):
    look = Shown("milliseconds", "{:,.0f}", factor=1000)
    added = Column("request_seconds", {"terminal": look, "comparison": look, "arms.csv": look}, over_tasks="mean")
    without = tuple(column for column in COLUMNS if column.name != "request_seconds")
    monkeypatch.setattr(columns, "COLUMNS", (*without, added))
    assert "milliseconds" in printed_table([ROW]) and " 250" in printed_table([ROW])
    results = tmp_path / "results.json"
    results.write_text('[{"run": "r", "name": "a", "passed": 1, "total": 2, "request_seconds": 0.25}]')
    write_comparison(Store(str(tmp_path / "out")), "t", read_results([results]))
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert '<th class="n">milliseconds</th>' in page and '<td class="n">250</td>' in page
    assert "milliseconds" in (tmp_path / "out" / "arms.csv").read_text().splitlines()[0]
    assert "request_seconds" in over_tasks("mean")
