"""The report of what the store holds."""

import datetime

from lpc_ray.adapters.mlflow import where_tracked
from lpc_ray.adapters.pipeline.context import RunContext
from lpc_ray.adapters.pipeline.stage import stage
from lpc_ray.report import report
from lpc_ray.run.baselines import baseline_records
from lpc_ray.run.facts import run_facts
from lpc_ray.run.records import arm_record, check_reportable
from lpc_ray.run.trace_quality import induction_reports


@stage(needs_ray=False)
def write_report(context: RunContext) -> None:
    """Write the report from what the store holds, log it, and print the table and where it lies.

    Raises: DataError when the store holds no figure of this recipe's arms, or lacks scores it should hold.
    """
    plan, run = context.plan, context.run
    arms = [arm_record(plan, run, arm) for arm in plan.arms]
    check_reportable(plan, run, arms)
    baselines = baseline_records(plan, run)
    tracker = context.tracker
    title = f"lpc_ray: {plan.config.name}"
    held_out = [case for case in plan.cases if case.split == "held_out"]
    facts = run_facts(plan, lambda: datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"))
    task = ", ".join(document.name for document in plan.documents)
    scope = report.ReportScope(plan.config.name, task, len(plan.source_ids))
    induction = induction_reports(plan, run)
    rows = report.write_report(
        run.store, title, facts, arms, baselines, held_out, scope, plan.config.report.thresholds, induction
    )
    figures = {f"held_out.{row.name}": row.score for row in rows if row.score is not None}
    tracker.end({name: run.store.read_bytes(name) for name in report.REPORT_FILES}, figures)
    print(f"\n{report.printed_table(rows)}\n", flush=True)
    context.say("report", f"{run.report_page}  ({where_tracked(tracker.uri)})")
