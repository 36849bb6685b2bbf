"""The announced fare is in the table with its return fare, and nothing else has changed."""

from pathlib import Path

from pptx import Presentation

OUTPUT = Path("/root/fares_new.pptx")


def deck():
    assert OUTPUT.exists(), "fares_new.pptx was not written"
    return Presentation(str(OUTPUT))


def table():
    return next(shape.table for shape in deck().slides[0].shapes if shape.has_table)


def texts(row):
    return [cell.text for cell in table().rows[row].cells]


def test_the_single_fare_is_the_announced_one():
    assert texts(2)[1] == "7.40"


def test_the_return_fare_follows_from_it():
    assert texts(2)[2] == "13.32"


def test_the_other_routes_are_as_they_were():
    assert texts(1) == ["Harbour - Gull Island", "4.00", "7.20"]
    assert texts(3) == ["Harbour - Old Town", "3.20", "5.76"]


def test_the_changed_cells_are_still_bold():
    assert all(table().cell(2, column).text_frame.paragraphs[0].runs[0].font.bold for column in (1, 2))


def test_the_deck_has_its_two_titles():
    assert [slide.shapes.title.text for slide in deck().slides] == ["Ferry fares", "Timetable"]


def test_the_announcement_still_stands_there():
    boxes = [shape.text_frame.text for shape in deck().slides[0].shapes if shape.has_text_frame]
    assert "From May: Harbour - Lighthouse, single fare 7.40" in boxes
