"""What is known of how a trace set was made: seconds and quality, kept beside its traces."""

from dataclasses import asdict
from typing import Any

from lpc_ray.config.recipe import GENERAL
from lpc_ray.run.arms import TraceSet
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.plan import Plan
from lpc_ray.traces.quality import quality
from lpc_ray.traces.store import TraceStore

INDUCTION_FILE = "induction.json"


def add_induction_seconds(run: RunFolder, one: TraceSet, seconds: float) -> None:
    """Beside the traces of `one`: what its induction took, added to what it took before."""
    record = induction_record(run, one)
    cost = {"family": one.family, "induction_seed": one.induction_seed, "seconds": record.get("seconds", 0.0) + seconds}
    run.traces(one.id).write_json(INDUCTION_FILE, {**record, **cost})


def judge_induction(plan: Plan, run: RunFolder, one: TraceSet) -> None:
    """Beside the traces of `one`: their quality, judged once for the rows there are."""
    rows = list(TraceStore(run.traces(one.id)).all_rows())
    record = induction_record(run, one)
    if record.get("judged_rows") == len(rows):
        return
    sources = {document.digest: document.text for document in plan.documents}
    found = quality(
        rows,
        text_of=lambda ids: plan.tokenizer.decode(ids, skip_special_tokens=True),
        source_of=lambda digest: None if one.family == GENERAL else sources.get(digest, plan.document_text),
    )
    judged = {"judged_rows": len(rows), "quality": asdict(found)}
    run.traces(one.id).write_json(INDUCTION_FILE, {**record, **judged})


def induction_record(run: RunFolder, one: TraceSet) -> dict[str, Any]:
    """What is known of how `one` was made: seconds, family, induction_seed, quality. Empty before."""
    folder = run.traces(one.id)
    return folder.read_json(INDUCTION_FILE) if folder.exists(INDUCTION_FILE) else {}


def induction_reports(plan: Plan, run: RunFolder) -> list[dict[str, Any]]:
    """The records of all trace sets of the plan that have been made and judged."""
    records = [record for one in plan.trace_sets() if "quality" in (record := induction_record(run, one))]
    for record in records:  # JSON is stored with its keys sorted as text
        lengths = record["quality"]["lengths"].items()
        record["quality"]["lengths"] = dict(sorted(lengths, key=lambda bin: (bin[0][0] == ">", int(bin[0].split()[1]))))
    return records
