"""SkillsBench: the reply's Python program is run, and then the task's own tests on what it left.

The score is the count of tests passed (published as "x / 19"); `reward` is 1 when all pass (SkillsBench's own). A program
that fails is shown to its author with its error and may be written anew, each time on untouched inputs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from lpc_ray.config.loading import Distinct, Strict
from lpc_ray.errors import ConfigError, VerificationError
from lpc_ray.model.chat import with_system
from lpc_ray.model.thinking import said
from lpc_ray.records import Ask, Case, Message, Outcome
from lpc_ray.sources.skillsbench import Task, no_skill_prompt, placements, read_tasks, skill_prompt
from lpc_ray.verification.base import Benchmark, Examination, Judgement, rows_of
from lpc_ray.verification.sandbox.bubblewrap import check_available
from lpc_ray.verification.sandbox.limits import MIB, Execution, Limits
from lpc_ray.verification.sandbox.program import program_in
from lpc_ray.verification.sandbox.task_runner import (
    Preflight,
    Rules,
    TestReport,
    laid_out,
    preflight,
    run_program,
    run_tests,
)

SCORER = "skillsbench/4"
LEAK_WORDS = 12
_ERROR_TAIL = 2000


class Settings(Strict):
    """`tune`, `held_out`: names of tasks; best steps are chosen by the first, so no task may be in both.

    attempts: programs per case. seconds, test_seconds, memory_mib: limits of a program and of a task's tests.
    """

    tune: Annotated[tuple[str, ...], Field(min_length=1), Distinct]
    held_out: Annotated[tuple[str, ...], Distinct] = ()
    attempts: Annotated[int, Field(ge=1, le=3)] = 3
    seconds: Annotated[float, Field(gt=0, le=1e6)] = 60.0
    test_seconds: Annotated[float, Field(gt=0, le=1e6)] = 120.0
    memory_mib: Annotated[int, Field(ge=256, le=1 << 24)] = 2048


@dataclass(frozen=True)
class SkillsBench(Benchmark):
    """One case per task, whose name is the case's id. `digests`: of the tasks' files."""

    cases: tuple[Case, ...]
    tasks: dict[str, Task]
    digests: dict[str, str]
    attempts: int
    rules: Rules

    def identity(self) -> list[Any]:
        limits = [[rule.seconds, rule.memory_bytes] for rule in (self.rules.program, self.rules.tests)]
        return [SCORER, rows_of(self.cases), self.digests, self.attempts, limits]

    def asked(self, case: Case) -> str:
        return self.tasks[case.id].instruction

    def caveats(self) -> list[str]:
        untested = "got no tests (test_*.py), so its outcomes will be empty: they are not scored"
        lines = [f"task {name}: {untested}" for name, task in self.tasks.items() if task.tests is None]
        for name, task in self.tasks.items():
            shared = leaked(task.instruction, task.skills)
            if shared:
                lines.append(
                    f"task {name}: its instruction holds words of the skill, which every arm then has: {shared!r}"
                )
        return lines

    def without_sandbox(self) -> "SkillsBench":
        return replace(self, rules=replace(self.rules, unsandboxed=True))

    def messages(self, case: Case, document: str | None, system: str | None) -> list[Message]:
        """The no-skill prompt, or with `document` in front of it. Raises: VerificationError when the skill leaks."""
        task = self.tasks[case.id]
        asked = case.question if document is None else skill_prompt(document, task)
        messages = with_system([Message(role="user", content=asked)], system)
        if document is None:
            leak = leaked("\n".join(message["content"] for message in messages), task.skills, task.instruction)
            if leak:
                raise VerificationError(f"task {task.name}: the no-skill prompt holds the skill's text: {leak!r}")
        return messages

    def examine(self, case: Case, ask: Ask) -> Examination:
        task = self.tasks[case.id]
        ready = self.preflight(case.id)
        if ready.status != "ready":
            return Judgement(ready.status, "", 0, len(ready.names))
        opening, attempt = ask.messages, 1
        while True:
            [reply] = yield [ask]
            judgement, error = self._judge(task, program_in(said(reply)), ready)
            if error is None or attempt == self.attempts:
                figures = {"attempts": attempt, "cap_hit": float(reply.finish_reason == "length")}
                return replace(judgement, figures={**judgement.figures, **figures})
            ask = replace(ask, messages=(*opening, *_feedback(said(reply), error)))
            attempt += 1

    def preflight(self, name: str) -> Preflight:
        self.check_runnable()
        return preflight(self.tasks[name], self.digests[name], self.rules)

    def added_tokens(self, max_tokens: int) -> int:
        return max_tokens + _ERROR_TAIL if self.attempts > 1 else 0

    def is_stale(self, outcome: Outcome) -> bool:
        was_confounded = outcome.verdict == "harness_confounded"
        return super().is_stale(outcome) or (was_confounded and self.preflight(outcome.case_id).status == "ready")

    def check_runnable(self) -> None:
        check_available(self.rules.unsandboxed)

    def readiness(self) -> list[str]:
        return [_readiness(name, self.preflight(name)) for name in self.tasks]

    def _judge(self, task: Task, code: str | None, ready: Preflight) -> tuple[Judgement, str | None]:
        """The judgement of a program, and the error to show its author when it did not run to its end."""
        total = len(ready.names)
        if code is None:
            return Judgement("fail", "no_code", 0, total, {"reward": 0.0}), "The reply holds no ```python block."
        try:
            with laid_out(task, self.rules) as (sandbox, workdir):
                done = run_program(sandbox, workdir, code, self.rules)
                report = run_tests(sandbox, workdir, task, self.rules)
        except VerificationError as error:
            return Judgement("verifier_error", str(error), 0, total), None
        return _scored(done, report, ready.names), _error_of(done)


def _readiness(name: str, found: Preflight) -> str:
    if found.status != "ready":
        return f"task {name}: {found.status}, not scored: {found.reason}"
    return f"task {name}: the reference passes all {len(found.names)} tests, doing nothing passes {found.untouched}"


def leaked(prompt: str, skill: str, allowed: str = "") -> str | None:
    """A stretch of LEAK_WORDS words that the prompt shares with the skill and that `allowed` does not have, or None."""
    found = _stretches(prompt) & _stretches(skill) - _stretches(allowed)
    return min(found, default=None)


def _stretches(text: str) -> set[str]:
    words = text.split()
    return {" ".join(words[start : start + LEAK_WORDS]) for start in range(len(words) - LEAK_WORDS + 1)}


def _feedback(reply: str, error: str) -> list[Message]:
    request = f"The program failed:\n\n{error}\n\nWrite the whole program again; the input files are as they were."
    return [Message(role="assistant", content=reply), Message(role="user", content=request)]


def _error_of(done: Execution) -> str | None:
    if done.exceeded:
        return f"It was stopped: it used more {done.exceeded} than is allowed.\n{done.error[-_ERROR_TAIL:]}".strip()
    return done.error[-_ERROR_TAIL:] or f"exit code {done.exit_code}" if done.exit_code else None


def _scored(done: Execution, report: TestReport, names: frozenset[str]) -> Judgement:
    """Of the tests that the reference passed: one that was skipped, or not even collected, has not been passed. A failed test
    that the reference did not have keeps a program from passing all.

    `invalid`: there is no report, or one that pytest's exit code contradicts.
    """
    total = len(names)
    stage: Literal["timeout", "exec_error", "wrong_output"] = "wrong_output"
    if done.exceeded or done.exit_code:
        stage = "timeout" if done.exceeded == "time" else "exec_error"
    if report.exceeded:
        stage = "timeout" if report.exceeded == "time" else stage
        return Judgement("fail", stage, 0, total, {"reward": 0.0})
    passed = sum(report.passed.get(name, False) for name in names)
    if not all(report.passed.values()):
        passed = min(passed, total - 1)
    if not report.is_readable or (passed == total and report.exit_code != 0):
        return Judgement("invalid", stage, 0, total)
    if passed == total:
        return Judgement("pass", "", total, total, {"reward": 1.0})
    return Judgement("fail", stage, passed, total, {"reward": 0.0})


def load(path: Path, settings: Settings) -> SkillsBench:
    """Raises: ConfigError without pytest, for a task that the folder lacks or one in both splits; DataError for a task whose
    inputs cannot be placed.
    """
    if find_spec("pytest") is None:
        raise ConfigError(
            "recipe.verification.kind skillsbench: got no pytest, which runs the tasks' tests, wanted the extra `sandbox`: "
            "pip install 'lpc-ray[sandbox]'"
        )
    known = read_tasks(path.resolve())
    for name in (*settings.tune, *settings.held_out):
        if name not in known:
            raise ConfigError(f"recipe.verification.settings: got task {name!r}, wanted one of {', '.join(known)}")
    both = sorted(set(settings.tune) & set(settings.held_out))
    if both:
        raise ConfigError(f"recipe.verification.settings: got task {both[0]!r} in tune and held_out, wanted it in one")
    cases = [*_cases(known, settings.tune, "tune"), *_cases(known, settings.held_out, "held_out")]
    tasks = {case.id: known[case.id] for case in cases}
    for task in tasks.values():
        placements(task)
    memory = settings.memory_mib * MIB
    rules = Rules(
        program=Limits(seconds=settings.seconds, memory_bytes=memory),
        tests=Limits(seconds=settings.test_seconds, memory_bytes=memory),
    )
    digests = {name: task.digest for name, task in tasks.items()}
    return SkillsBench(tuple(cases), tasks, digests, settings.attempts, rules)


def _cases(known: dict[str, Task], names: Iterable[str], split: Any) -> list[Case]:
    return [Case(name, no_skill_prompt(known[name]), (), split) for name in names]
