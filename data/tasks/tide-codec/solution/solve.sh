#!/bin/bash
python3 - <<'PY'
import json
from pathlib import Path


def encode(station, levels):
    steps = ",".join(f"{after - before:+d}" for before, after in zip(levels, levels[1:]))
    return f"{station.upper()}|{levels[0]}|{steps}|{sum(levels) % 97:02d}"


def decode(line):
    try:
        station, first, steps, total = line.split("|")
        levels = [int(first)]
        for step in steps.split(",") if steps else []:
            levels.append(levels[-1] + int(step))
        return {"station": station, "levels": levels} if sum(levels) % 97 == int(total) else None
    except ValueError:
        return None


levels = json.loads(Path("/root/levels.json").read_text())
Path("/root/encoded.txt").write_text("".join(encode(*item) + "\n" for item in levels.items()))
received = Path("/root/received.txt").read_text().splitlines()
Path("/root/decoded.json").write_text(json.dumps([decode(line) for line in received]))
PY
