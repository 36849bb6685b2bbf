"""Carries out one SkillsBench task: its inputs laid out, a program run on them, its own tests run on what is left.

Program and tests run in separate sandboxes of one file tree, so nothing that the program started lives on, and only the
second sees the tests. The tests' outcome is read from pytest's JUnit XML, never from what it prints.
"""

import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from lpc_ray.errors import VerificationError
from lpc_ray.sources.skillsbench import Task, placements
from lpc_ray.verification.sandbox.bubblewrap import Sandbox, drop_links_out, make_enterable, open_sandbox, own, remove
from lpc_ray.verification.sandbox.limits import Execution, Limits

_NOT_FOR_INPUTS = ("usr", "etc", "bin", "lib", "dev", "proc", "runtime", "tests", "logs", "program", "solution")
_REPORT, _REPORT_BYTES = "report.xml", 16 * 1024**2
# -I: neither the working directory nor anything a program left in its home can stand in for a module or a conftest.
_PYTEST = """\
import sys
sys.path.append("/runtime/packages")
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of a program and of a task's tests, and whether they may run outside a sandbox."""

    program: Limits = Limits()
    tests: Limits = Limits(seconds=120.0)
    unsandboxed: bool = False


@dataclass(frozen=True, slots=True)
class TestReport:
    """What pytest said: test → whether it passed; skipped ones are absent. `exit_code`: pytest's; `exceeded`: a limit.

    is_readable: False where there is no report, or none that can be read.
    """

    __test__ = False

    passed: dict[str, bool]
    exit_code: int
    exceeded: str = ""
    reason: str = ""
    is_readable: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.passed)


@dataclass(frozen=True, slots=True)
class Preflight:
    """Whether a task can be trusted: its reference solution passes all its tests, and doing nothing does not.

    names: the tests that the reference passed; their number is the task's denominator. untouched: how many of them pass
    when nothing was done.
    """

    status: Literal["ready", "empty", "harness_confounded"]
    reason: str = ""
    names: frozenset[str] = field(default_factory=frozenset)
    untouched: int = 0


@contextmanager
def laid_out(task: Task, rules: Rules) -> Iterator[tuple[Sandbox, str]]:
    """A sandbox that holds the task's inputs, and the working directory. Raises: VerificationError for a bad layout."""
    workdir, places = placements(task)
    with open_sandbox(rules.unsandboxed) as sandbox:
        try:
            for source, inside in places:
                _place(source, sandbox.home / inside.lstrip("/"), Path(inside).parts[1])
            (sandbox.home / workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
            own(sandbox, sandbox.home)
        except OSError as error:
            raise VerificationError(f"task {task.name}: its inputs cannot be laid out: {error}") from error
        yield sandbox, workdir


def _place(source: Path, target: Path, top: str) -> None:
    if top in _NOT_FOR_INPUTS:
        raise VerificationError(f"{source}: an input goes to /{top}, which is not the program's")
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def run_program(sandbox: Sandbox, workdir: str, code: str, rules: Rules) -> Execution:
    """Run a reply's Python program; it lies outside the file tree that it works on."""
    with _beside(sandbox, "program") as folder:
        (folder / "main.py").write_text(code, encoding="utf-8")
        return sandbox.run(["python3", "{/program}/main.py"], rules.program, workdir, read_only={"/program": folder})


def run_reference(sandbox: Sandbox, workdir: str, task: Task, rules: Rules) -> Execution:
    """Run the task's own solve.sh; shell scripts from a checkout with CRLF run as they would with LF."""
    assert task.solution is not None
    with _beside(sandbox, "solution") as folder:
        shutil.copytree(task.solution, folder, dirs_exist_ok=True)
        for script in folder.rglob("*.sh"):
            if script.is_file() and not script.is_symlink():
                script.write_bytes(script.read_bytes().replace(b"\r\n", b"\n"))
        return sandbox.run(["bash", "{/solution}/solve.sh"], rules.program, workdir, read_only={"/solution": folder})


def run_tests(sandbox: Sandbox, workdir: str, task: Task, rules: Rules) -> TestReport:
    """Run the task's tests on what the program left. Raises: VerificationError when the sandbox cannot run."""
    assert task.tests is not None
    drop_links_out(sandbox)
    make_enterable(sandbox, workdir)
    with _beside(sandbox, "tests") as tests, _beside(sandbox, "logs") as logs:
        shutil.copytree(task.tests, tests, dirs_exist_ok=True)
        own(sandbox, logs)
        files = sorted(path.relative_to(tests).as_posix() for path in tests.glob("test_*.py"))
        command = ["python3", "-I", "-c", _PYTEST, "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
        command += ["--rootdir={/tests}", "--confcutdir={/tests}", "-o", "junit_family=xunit2"]
        command += [f"--junitxml={{/logs}}/{_REPORT}", *(f"{{/tests}}/{name}" for name in files)]
        limits = replace(rules.tests, seconds=min(rules.tests.seconds, task.timeout_seconds))
        done = sandbox.run(command, limits, workdir, read_only={"/tests": tests}, writable={"/logs": logs})
        return _report(logs / _REPORT, done)


def _report(path: Path, done: Execution) -> TestReport:
    output = (done.output + done.error)[-2000:]
    if done.exceeded:
        return TestReport({}, done.exit_code, done.exceeded, output)
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _REPORT_BYTES:
        reason = f"no report; pytest exited with {done.exit_code}: {output}"
        return TestReport({}, done.exit_code, reason=reason, is_readable=False)
    try:
        cases = ElementTree.fromstring(path.read_bytes()).iter("testcase")
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # not XML, or in an encoding that nobody knows
        return TestReport({}, done.exit_code, reason=f"malformed report: {error}", is_readable=False)
    passed = {
        f"{case.get('classname')}::{case.get('name')}": case.find("failure") is None and case.find("error") is None
        for case in cases
        if case.find("skipped") is None
    }
    return TestReport(passed, done.exit_code, reason=output)


@contextmanager
def _beside(sandbox: Sandbox, name: str) -> Iterator[Path]:
    """A folder that is no part of the program's file tree, readable inside; gone afterwards."""
    folder = sandbox.home.parent / name
    folder.mkdir()
    try:
        yield folder
    finally:
        remove(folder)


@lru_cache(maxsize=256)
def preflight(task: Task, digest: str, rules: Rules) -> Preflight:
    """Run the reference solution and the tests, as for any reply; once per process. digest: the task's, for the cache."""
    if task.tests is None:
        return Preflight("empty", "the task has no tests")
    if task.solution is None:
        return Preflight("harness_confounded", "the task has no reference solution")
    try:
        with laid_out(task, rules) as (sandbox, workdir):
            solved = run_reference(sandbox, workdir, task, rules)
            report = run_tests(sandbox, workdir, task, rules)
        with laid_out(task, rules) as (sandbox, workdir):
            untouched = run_tests(sandbox, workdir, task, rules)
    except VerificationError as error:
        return Preflight("harness_confounded", str(error))
    if not report.passed or not all(report.passed.values()) or report.exit_code != 0:
        failed = sorted(name for name, passed in report.passed.items() if not passed)
        reason = f"the reference fails {', '.join(failed) or 'to be tested'}: {report.exceeded or report.reason}"
        return Preflight("harness_confounded", f"{reason}; solve.sh: {solved.exceeded or solved.error[-500:]}")
    done = sum(untouched.passed.get(name, False) for name in report.names)
    if done == len(report.names):
        return Preflight("harness_confounded", "all tests pass when nothing was done")
    return Preflight("ready", names=report.names, untouched=done)
