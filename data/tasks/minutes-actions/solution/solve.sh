#!/bin/bash
python3 - <<'PY'
import datetime
import json
import re
from pathlib import Path

items = {}
for path in sorted(Path("/root/minutes").glob("*.md"), key=lambda p: p.read_text().split()[2]):
    text = path.read_text()
    meeting = datetime.date.fromisoformat(re.search(r"# Meeting (\S+)", text)[1])
    for what, day, month, owner in re.findall(r"- \[ \] (.+) by (\d+)/(\d+) @(\w+)", text):
        due = datetime.date(meeting.year, int(month), int(day))
        due = due if due >= meeting else due.replace(year=meeting.year + 1)
        items[what] = {"meeting": str(meeting), "owner": owner, "due": str(due), "text": what}
ordered = sorted(items.values(), key=lambda item: (item["due"], item["owner"]))
Path("/root/actions.json").write_text(json.dumps(ordered))
PY
