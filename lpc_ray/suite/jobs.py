"""Configs of runs over several tasks, and the job configs that they come down to: one recipe, a job per task.

`recipe` is that of a job, without a source and a verification, which each task fills in. `suite`: tasks in SkillsBench's
layout, whose skills are the source and whose own tests verify. `patients`: LongHealth's records and their questions.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lpc_ray.config.job import JobConfig
from lpc_ray.config.loading import nearest, read, validated
from lpc_ray.config.suite import ManyTasks, PatientsConfig, SuiteConfig
from lpc_ray.errors import ConfigError
from lpc_ray.suite.promotion import Decision

BASELINES = ("no_context", "full_document", "truncated", "text_prefill")
_SIZED = re.compile(r"(?:truncated|text_prefill)-p\d+")


def load_many(path: str | Path, overrides: list[str] | None = None) -> SuiteConfig | PatientsConfig | None:
    """The config in a file that names several tasks; None for that of a single job.

    Raises: ConfigError (one line: got, wanted, where), also for a recipe that no job could carry out.
    """
    raw = read(path, overrides)
    if "suite" in raw:
        config = validated(SuiteConfig, raw, f"config {path}")
        _check_beats(config, focus_job(config))
        return config
    if "patients" in raw:
        config = validated(PatientsConfig, raw, f"config {path}")
        patient_jobs(config)
        return config
    return None


def _check_beats(config: SuiteConfig, focus: JobConfig) -> None:
    """What has no score on the focused task would be found out only after its run."""
    beats = config.suite.promotion.beats
    known = [*dict.fromkeys(family for entry in focus.recipe.sweep for family in entry.induction), *BASELINES]
    if beats is not None and beats not in known and not _SIZED.fullmatch(beats):
        raise ConfigError(
            f"config {config.name}: suite.promotion.beats: got {beats!r}, wanted one of {', '.join(known)}"
            f"{nearest(beats, set(known))}"
        )


def focus_job(config: SuiteConfig) -> JobConfig:
    """Every family on the focused task, as the recipe's sweep has it."""
    return _task_job(config, config.suite.focus, config.recipe)


def stratum_jobs(
    config: SuiteConfig, tasks: Sequence[str], decisions: Sequence[Decision], steps: Mapping[str, int]
) -> list[JobConfig]:
    """A job per task with the families that go on, each on its own seeds, checkpointed where the focused task said.

    steps: family → the step that was best on the focused task; nothing is stopped before it, and no later choice is made.
    Raises: ConfigError when no family has seeds for the strata.
    """
    seeds = {decision.family: decision.seeds for decision in decisions if decision.seeds}
    sweep = [
        {**entry, "induction": family, "seed": list(seeds[family])}
        for entry in config.recipe["sweep"]
        for family in _families(entry)
        if family in seeds
    ]
    if not sweep:
        raise ConfigError(f"suite {config.name}: the promotion rule lets no family go on to the strata")
    recipe: dict[str, Any] = {**copy.deepcopy(config.recipe), "sweep": sweep}
    checkpoints = sorted({steps[family] for family in seeds})
    training = {**recipe.get("training", {}), "checkpoint_steps": checkpoints}
    last = focus_job(config).recipe.training.steps
    whole = {**recipe, "training": training, "stopping": {"grace_steps": last}}
    return [_task_job(config, task, whole) for task in tasks]


def _families(entry: Mapping[str, Any]) -> list[str]:
    induction = entry["induction"]
    return [induction] if isinstance(induction, str) else list(induction)


def patient_jobs(config: PatientsConfig) -> dict[str, JobConfig]:
    """Patient id → the job on that record alone, asked that patient's questions."""
    patients = config.patients
    jobs = {}
    for patient in patients.ids:
        settings = {"patients": [patient], "num_tune": patients.num_tune, "seed": patients.seed}
        verification = {
            "kind": "longhealth",
            "cases": patients.file,
            "settings": settings,
            "max_tokens": patients.max_tokens,
        }
        source = {"paths": [f"{patients.file}#{patient}"], "description": "The medical record of one patient."}
        jobs[patient] = _job(config, patient, config.recipe, source, verification)
    return jobs


def _task_job(config: SuiteConfig, task: str, recipe: Mapping[Any, Any]) -> JobConfig:
    suite = config.suite
    settings = {**suite.settings, "tune": [task]}
    verification = {"kind": "skillsbench", "cases": suite.tasks, "settings": settings, "max_tokens": suite.max_tokens}
    source = {"paths": [f"{suite.tasks}/{task}"], "description": f"The skills of the task {task}."}
    return _job(config, task, recipe, source, verification)


def _job(
    config: ManyTasks, task: str, recipe: Mapping[Any, Any], source: dict[str, Any], verification: dict[str, Any]
) -> JobConfig:
    raw = {
        "name": f"{config.name}.{task}",
        "recipe": {**recipe, "source": source, "verification": verification},
        **{part: getattr(config, part) for part in ("cluster", "store", "tracking", "report")},
    }
    return validated(JobConfig, raw, f"config {config.name}, task {task}")
