#!/bin/bash
python3 - <<'PY'
import openpyxl

watches = {}
for month in ("april", "may"):
    for date, watch, keeper in openpyxl.load_workbook(f"/root/rosters/{month}.xlsx")["Watches"].iter_rows(min_row=2, values_only=True):
        watches[date, watch] = keeper
order = ["First", "Middle", "Morning"]
book = openpyxl.Workbook()
book.active.title = "Watches"
book.active.append(["Date", "Watch", "Keeper"])
for date, watch in sorted(watches, key=lambda key: (key[0], order.index(key[1]))):
    if watches[date, watch]:
        book.active.append([date, watch, watches[date, watch]])
book.save("/root/roster.xlsx")
PY
