#!/bin/bash
python3 - <<'PY'
import openpyxl

book = openpyxl.load_workbook("/root/stock.xlsx")
stores = sorted({row[1].value for row in book["Items"].iter_rows(min_row=2, max_row=11)})
sheet = book.create_sheet("Summary")
sheet.append(["Store", "Pieces", "Value"])
where, count, price = (f"Items!${c}$2:${c}$11" for c in "BCD")
for row, store in enumerate(stores, start=2):
    sheet.append([store, f"=SUMIF({where},A{row},{count})", f"=SUMPRODUCT(({where}=A{row})*{count}*{price})"])
last = len(stores) + 1
sheet.append(["Total", f"=SUM(B2:B{last})", f"=SUM(C2:C{last})"])
book.save("/root/stock_summary.xlsx")
PY
