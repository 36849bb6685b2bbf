#!/bin/bash
python3 - <<'PY'
import re

from pptx import Presentation

deck = Presentation("/root/fares.pptx")
shapes = [shape for slide in deck.slides for shape in slide.shapes]
note = next(s.text_frame.text for s in shapes if s.has_text_frame and "single fare" in s.text_frame.text)
route, fare = re.search(r": (.+), single fare ([0-9.]+)", note).groups()
table = next(shape.table for shape in shapes if shape.has_table)
for row in table.rows:
    if row.cells[0].text == route:
        for cell, value in ((row.cells[1], float(fare)), (row.cells[2], float(fare) * 2 * 0.9)):
            cell.text_frame.paragraphs[0].runs[0].text = f"{value:.2f}"
deck.save("/root/fares_new.pptx")
PY
