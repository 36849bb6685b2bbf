"""The time left, from what has been measured; errors in one line."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc_ray.adapters.pipeline.pace import Pace
from lpc_ray.errors import DataError
from lpc_ray.terminal import Console, Parser, clock, exit_on_error, printable


def test_an_error_of_the_users_is_one_line_and_exit_code_2(capsys):
    with pytest.raises(SystemExit) as ended, exit_on_error():
        raise DataError("results /none.json: No such file or directory")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: results /none.json: No such file or directory\n"


def test_an_interrupt_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended, exit_on_error():
        raise KeyboardInterrupt
    assert ended.value.code == 130 and capsys.readouterr().err.startswith("interrupted: ")


def test_unknown_arguments_are_one_line_and_exit_code_2(capsys):
    with pytest.raises(SystemExit) as ended:
        Parser(prog="lpc").parse_args(["--nope"])
    assert ended.value.code == 2 and capsys.readouterr().err == "error: unrecognized arguments: --nope\n"


def test_other_errors_keep_their_traceback():
    with pytest.raises(ZeroDivisionError), exit_on_error():
        raise ZeroDivisionError


def test_time_left_is_that_of_the_steps_taken_since_the_first_report():
    pace = Pace(["a", "b"], last_step=32)
    # Checkpoints 0, 1, 2 and 4 are reported together: their time was before the clock began.
    assert [pace.left("a", 4, False, now=100.0 + n / 100) for n in range(4)] == [None] * 4
    assert pace.left("a", 24, False, now=160.0) == (160.0 - 100.0) / 20 * (8 + 32)
    assert pace.left("a", 24, False, now=160.0) == 120.0, "a second checkpoint of the same batch changes nothing"
    pace.ended("a")
    assert pace.left("b", 4, False, now=172.0) == (172.0 - 100.0) / 24 * 28


def test_what_a_rerun_repeats_does_not_count_as_fast_training():
    pace = Pace(["a", "b"], last_step=8)
    pace.left("a", 4, True, now=0.0)
    assert pace.left("a", 8, False, now=40.0) == 40.0 / 4 * 8
    pace.ended("a")
    assert pace.left("b", 6, True, now=41.0) == 41.0 / 4 * 2


def test_an_arm_that_ended_before_is_not_waited_for():
    pace = Pace(["open"], last_step=2)
    assert pace.left("ended", 2, True, now=0.0) is None
    pace.left("open", 0, False, now=1.0)
    assert pace.left("open", 1, False, now=4.0) == 3.0


def test_clock_is_minutes_and_seconds():
    assert [clock(0), clock(61.4), clock(-3), clock(3600)] == ["00:00", "01:01", "00:00", "60:00"]


def test_a_silent_stage_is_kept_alive_with_what_there_is_to_tell(capsys):
    console, news = Console(), iter([("engine", "3 replies"), None, ("engine", "5 replies")])
    with console.kept_alive(lambda: next(news, None), seconds=0.05):
        time.sleep(0.5)
    assert [line.split(maxsplit=2)[1:] for line in capsys.readouterr().out.splitlines()] == [
        ["engine", "3 replies"],
        ["engine", "5 replies"],
    ]


def test_a_stage_that_speaks_is_left_alone(capsys):
    console = Console()
    with console.kept_alive(lambda: ("engine", "never"), seconds=1.0):
        for _ in range(10):
            console("verify", "a line")
            time.sleep(0.05)
    assert "never" not in capsys.readouterr().out


ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, sys, time
from lpc_ray.terminal import exit_on_error
with exit_on_error():
    try:
        print("started", flush=True)
        {work}
    finally:
        print("cleaned", file=sys.stderr)
"""


def _run(work: str, **environment) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(work=work)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_is_told_to_end_cleans_up_first(how):
    program = _run("time.sleep(60)")
    assert program.stdout.readline() == "started\n"
    program.send_signal(how)
    _, output = program.communicate(timeout=60)
    cleaned, line = output.splitlines()
    assert cleaned == "cleaned" and line.startswith("interrupted: ") and program.returncode == 130


def test_a_reader_that_has_had_enough_ends_the_program_without_a_word():
    program = _run("[print(number, flush=True) for number in range(10**6)]")
    program.stdout.readline()
    program.stdout.close()
    assert program.stderr.read() == "cleaned\n" and program.wait(60) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("work", ["[print('x' * 100) for _ in range(10**4)]", "print('x')"])
def test_a_full_disk_under_the_output_is_one_line(work):
    with open("/dev/full", "w") as full:
        program = subprocess.run(
            [sys.executable, "-c", PROGRAM.replace('print("started", flush=True)', "pass").format(work=work)],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert program.stderr == "cleaned\nerror: standard output: No space left on device\n" and program.returncode == 2


def test_another_error_of_the_system_keeps_its_traceback():
    with pytest.raises(FileNotFoundError), exit_on_error():
        Path("/nonexistent").read_bytes()


def test_a_program_without_an_output_runs_to_its_end():
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(PROGRAM.format(work='pass'))} >&-"
    program = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert (program.returncode, program.stderr) == (0, "cleaned\n")


@pytest.mark.parametrize("command", ["lpc_ray.cli.lpc list", "lpc_ray.cli.lpc inspect x", "jobs.pi_scale --dry-run"])
def test_what_only_shows_something_is_refused_without_an_output(command):
    line = f"{shlex.quote(sys.executable)} -m {command} >&-"
    program = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert (
        program.stderr == "error: standard output: got none, wanted one to show this on\n" and program.returncode == 2
    )


def test_another_broken_pipe_keeps_its_traceback():
    with pytest.raises(BrokenPipeError), exit_on_error():
        raise BrokenPipeError


def test_what_the_terminals_encoding_lacks_is_escaped():
    output, errors = _run("print('a → b')", PYTHONIOENCODING="ascii").communicate(timeout=60)
    assert output.splitlines()[-1] == r"a \u2192 b" and errors == "cleaned\n"


def test_a_line_of_progress_does_not_steer_the_terminal_either(capsys):
    Console()("verify", "task a\x1b[2J\nb: 1 → 2")
    assert capsys.readouterr().out.endswith("verify  task a\\x1b[2J\\nb: 1 → 2\n")


def test_an_error_does_not_steer_the_terminal(capsys):
    with pytest.raises(SystemExit), exit_on_error():
        raise DataError("a\x1b[2J\nb\u202e")
    assert capsys.readouterr().err == "error: a\\x1b[2J\\nb\\u202e\n"


@given(st.text())
def test_printable_text_is_one_line_and_plain_text_stays(text):
    assert printable(text).isprintable() and (printable(text) == text or not text.isprintable())
