"""Runs over several tasks, each task a job of its own, and one page over all of them.

A suite draws its strata, runs every family on the focused task, applies the promotion rule, and runs the promoted families
on the strata. Strata and decisions are written down before anything that depends on them is run. On a stratum's task an arm's
score is that of the step which was best on the focused task, so that no choice has read the task's tests.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lpc_ray.config.job import JobConfig
from lpc_ray.config.suite import PatientsConfig, SuiteConfig
from lpc_ray.errors import ConfigError
from lpc_ray.records import Outcome
from lpc_ray.report.comparison import write_comparison
from lpc_ray.report.ledger.ledger import ArmRecord, BaselineRecord, best_step, rows
from lpc_ray.report.ledger.row import Row
from lpc_ray.report.results.curves import MeasuredCurve
from lpc_ray.report.results.read import RunResults
from lpc_ray.report.statistics.steps_to_quality import curves
from lpc_ray.sources.skillsbench import read_tasks
from lpc_ray.storage import Store
from lpc_ray.suite.jobs import focus_job, patient_jobs, stratum_jobs
from lpc_ray.suite.promotion import Decision, promote
from lpc_ray.suite.strata import Strata, pick_strata

STRATA_FILE, PROMOTION_FILE = "strata.json", "promotion.json"


@dataclass(frozen=True)
class TaskResults:
    """What a job measured. source_tokens: of its task. tune: an artifact's digest → its outcomes on the tune cases."""

    source_tokens: int
    arms: Sequence[ArmRecord]
    baselines: Sequence[BaselineRecord]
    tune: Callable[[str], Sequence[Outcome]]


CarryOut = Callable[[JobConfig, Store], TaskResults]


def run_many(config: SuiteConfig | PatientsConfig, run: Store, carry_out: CarryOut) -> list[Row]:
    """carry_out: runs or resumes one job over the folder of its task. Returns the rows that the page in `run` shows."""
    if isinstance(config, SuiteConfig):
        return run_suite(config, run, carry_out)
    return run_patients(config, run, carry_out)


def run_patients(config: PatientsConfig, run: Store, carry_out: CarryOut) -> list[Row]:
    """Every arm on every patient's record; the page says which initializer wins, by the best seed and by the mean."""
    found: list[Row] = []
    lines: list[MeasuredCurve] = []
    jobs = patient_jobs(config)
    for patient, job in jobs.items():
        measured = carry_out(job, run / patient)
        lines += [replace(line, name=f"{patient}, {line.name}") for line in curves(measured.arms)]
        table = rows(measured.arms, measured.baselines, config.name, patient)
        tokens = wrapped_tokens(table)
        found += [replace(row, source_tokens=measured.source_tokens if tokens is None else tokens) for row in table]
    facts = {
        "patients": list(config.patients.ids),
        "questions that choose the step": config.patients.num_tune,
        "source tokens": "wrapped: what the record adds to a prompt; where no prompt held it, the record's own",
    }
    whole = {row.task for row in found if row.name == "full_document" and row.prompt_tokens is not None}
    too_long = [patient for patient in jobs if patient not in whole]
    if too_long:
        facts["no row with the whole record"] = (
            f"{', '.join(too_long)}: the engine's context does not hold it with a question and its reply"
        )
    results = RunResults(config.name, f"{config.name}: records of LongHealth", facts, tuple(found), tuple(lines), ())
    thresholds = next(iter(jobs.values())).report.thresholds
    write_comparison(run, f"lpc_ray: {config.name}", [results], thresholds)
    return found


def wrapped_tokens(table: Sequence[Row]) -> int | None:
    """What a source adds to a prompt, chat template and all: the whole document's prompt tokens less the bare model's."""
    prompts = {row.name: row.prompt_tokens for row in table}
    whole, bare = prompts.get("full_document"), prompts.get("no_context")
    return None if whole is None or bare is None else round(whole - bare)


def run_suite(config: SuiteConfig, run: Store, carry_out: CarryOut) -> list[Row]:
    """The focused task, the promotion and the strata. The page shows all of it. Returns the rows of the strata.

    Raises: ConfigError for a focus that is no task or cannot be scored, or where no family has seeds for the strata.
    """
    strata = draw(config)
    run.write_json(STRATA_FILE, asdict(strata))
    suite = config.suite
    focused = carry_out(focus_job(config), run / suite.focus)
    scores, steps = family_scores(focused.arms), family_steps(focused.arms)
    decisions = promote(scores, suite.promotion, baseline_scores(focused.baselines))
    run.write_json(PROMOTION_FILE, promotion_record(config, decisions, steps))
    found: list[Row] = []
    for job, task in zip(stratum_jobs(config, strata.tasks, decisions, steps), strata.tasks, strict=True):
        found += task_rows(carry_out(job, run / task), config.name, task, steps)
    focus = f"{config.name}, focused task"
    chosen_on = {
        "read these scores as": "those by which each arm's step and the families were chosen, so better than on another task"
    }
    tried = task_rows(focused, focus, suite.focus)
    first = RunResults(focus, f"{focus}: every family", chosen_on, tuple(tried), tuple(curves(focused.arms)), ())
    facts = {
        "focused task": suite.focus,
        "strata": {pick.task: f"{pick.stratum}, skill of {pick.skill_chars:,} characters" for pick in strata.picks},
        "drawn with seed": strata.seed,
        "promotion": {decision.family: _in_words(decision, steps[decision.family]) for decision in decisions},
        "step": "that which was best on the focused task, so that no choice has read a stratum's tests",
    }
    results = RunResults(config.name, f"{config.name}: families on the strata", facts, tuple(found), (), ())
    write_comparison(run, f"lpc_ray: {config.name}", [results, first])
    return found


def draw(config: SuiteConfig) -> Strata:
    """From the tasks that have tests and a skill, the focused one left out."""
    suite = config.suite
    tasks = read_tasks(Path(suite.tasks))
    sizes = {name: len(task.skills) for name, task in tasks.items() if task.tests and task.skills}
    if sizes.pop(suite.focus, None) is None:
        raise ConfigError(f"suite.focus: got {suite.focus!r}, wanted a task with tests and a skill in {suite.tasks}")
    return pick_strata(sizes, suite.strata.seed, suite.strata.per_stratum)


def family_scores(arms: Sequence[ArmRecord]) -> dict[str, list[float | None]]:
    """Family → the score of each of its arms at its best verified step; None where nothing was scored."""
    found: dict[str, list[float | None]] = {}
    for arm in arms:
        best = best_step(arm.steps)
        found.setdefault(arm.induction, []).append(best.passed / best.total if best else None)
    return found


def family_steps(arms: Sequence[ArmRecord]) -> dict[str, int]:
    """Family → the step of its best arm; 0 where nothing was scored."""
    best: dict[str, tuple[int, int]] = {}
    for arm in arms:
        step = best_step(arm.steps)
        found = (step.passed, -step.step) if step else (-1, 0)
        best[arm.induction] = max(best.get(arm.induction, found), found)
    return {family: -step for family, (_, step) in best.items()}


def baseline_scores(baselines: Sequence[BaselineRecord]) -> dict[str, list[float | None]]:
    """Baselines by name, as the focused task scored them."""
    scored = rows([], [replace(baseline, held_out=baseline.tune) for baseline in baselines])
    return {row.name: [row.score] for row in scored}


def promotion_record(config: SuiteConfig, decisions: Sequence[Decision], steps: Mapping[str, int]) -> dict:
    rule = config.suite.promotion.model_dump(mode="json")
    recorded = [asdict(decision) | {"step": steps[decision.family]} for decision in decisions]
    return {"focus": config.suite.focus, "rule": rule, "decisions": recorded}


def task_rows(results: TaskResults, run: str, task: str, steps: Mapping[str, int] | None = None) -> list[Row]:
    """The ledger of one task: each arm at the step that `steps` gives its family, else at its own best, and the baselines."""
    arms = []
    for arm in results.arms:
        best = best_step(arm.steps)
        step = steps[arm.induction] if steps is not None else best.step if best else None
        at = tuple(score for score in arm.steps if score.step == step)
        arms.append(replace(arm, steps=at, held_out=tuple(results.tune(at[0].digest)) if at else ()))
    table = rows(arms, [replace(baseline, held_out=baseline.tune) for baseline in results.baselines], run, task)
    return [replace(row, source_tokens=results.source_tokens) for row in table]


def _in_words(decision: Decision, step: int) -> str:
    score = "no score" if decision.score is None else f"{decision.score:.3f} at step {step}"
    seeds = ", ".join(map(str, decision.seeds))
    if decision.is_promoted:
        return f"{score}: promoted, with seeds {seeds}: it {decision.reason}"
    went = f"goes on only with seeds {seeds}" if seeds else "stays behind"
    return f"{score}: not promoted ({decision.reason}), {went}"
