#!/bin/bash
python3 - <<'PY'
import csv
from decimal import ROUND_HALF_UP, Decimal

metres = {"ft": Decimal("0.3048"), "fm": Decimal("1.8288"), "m": Decimal(1)}
kept = []
with open("/root/survey.csv") as source:
    for row in csv.DictReader(source):
        depth = Decimal(row["depth"])
        if row["quality"] != "Q3" and depth:
            depth = depth * metres[row["unit"]] + (Decimal("0.60") if row["boat"] == "Tern" else 0)
            kept.append((row["time"], row["boat"], depth.quantize(Decimal("0.01"), ROUND_HALF_UP)))
with open("/root/survey_metric.csv", "w", newline="") as target:
    out = csv.writer(target)
    out.writerow(["boat", "time", "depth_m"])
    out.writerows([boat, time, depth] for time, boat, depth in sorted(kept))
PY
