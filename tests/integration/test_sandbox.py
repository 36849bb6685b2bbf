"""The sandbox against programs that mean harm: each ends as it should, nothing escapes, nothing lives on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lpc_ray.errors import VerificationError
from lpc_ray.verification.sandbox import bubblewrap as sandbox_module
from lpc_ray.verification.sandbox.bubblewrap import Sandbox, check_available, open_sandbox
from lpc_ray.verification.sandbox.limits import MIB, Execution, Limits

ROOT = Path(__file__).resolve().parents[2]
FEW = Limits(seconds=60, processes=32, memory_bytes=1024 * MIB, file_bytes=8 * MIB, disk_bytes=32 * MIB)


def _soon(holds: Callable[[], bool], seconds: float = 10) -> None:
    """The kernel takes a moment to bury what was killed."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _run(code: str, limits: Limits = FEW) -> tuple[Execution, dict[str, str]]:
    """How the program ended, and the files that it left in /root."""
    with open_sandbox() as sandbox:
        sandbox_module.own(sandbox, sandbox.home)
        done = sandbox.run(["python3", "-c", code], limits)
        left = {
            path.name: path.read_text(errors="replace") for path in (sandbox.home / "root").iterdir() if path.is_file()
        }
        if sandbox.uid:
            _soon(lambda: sandbox.uid not in {each.info["uids"].real for each in psutil.process_iter(["uids"])})
    assert not sandbox.home.exists()
    return done, left


def test_a_program_runs_in_its_home_with_the_projects_packages():
    done, left = _run("import numpy, os; open('out', 'w').write(os.getcwd() + numpy.__version__[0]); print('done')")
    assert (done.exit_code, done.output, done.exceeded) == (0, "done\n", "")
    assert left == {"out": "/root2"}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("open('/etc/shadow')", "FileNotFoundError"),
        ("open('/etc/passwd')", "FileNotFoundError"),
        ("open('/escaped', 'w')", "Read-only file system"),
        ("open('/usr/escaped', 'w')", "Read-only file system"),
        ("open('/dev/escaped', 'w')", "Errno"),
        ("open('/tests/test_outputs.py', 'w')", "FileNotFoundError"),
        ("import socket; socket.create_connection(('127.0.0.1', 22), 3)", "ConnectionRefusedError"),
        ("import socket; socket.create_connection(('192.0.2.1', 80), 3)", "Network is unreachable"),
        ("import os; os.kill(1, 9)", "PermissionError"),
        ("bytearray(2 * 1024**3)", "MemoryError"),
        ("open('big', 'wb').write(b'x' * 9 * 1024**2)", "File too large"),
        ("import os\nwhile True: os.fork()", "Resource temporarily unavailable"),
        ("import os; os.setuid(1)", "Invalid argument"),
        ("import os; os.chroot('/tmp')", "PermissionError"),
        ("import ctypes\nif ctypes.CDLL(None).unshare(0x10000000): raise OSError('no namespace')", "no namespace"),
        (
            "import ctypes\nif ctypes.CDLL(None).mount(b't', b'/tmp', b'tmpfs', 0, 0): raise OSError('no mount')",
            "no mount",
        ),
    ],
)
def test_what_reaches_outside_fails_inside(code, error):
    done, _ = _run(code)
    assert done.exit_code != 0 and error in done.error
    assert not Path("/escaped").exists() and not Path("/usr/escaped").exists()


@pytest.mark.parametrize(
    ("code", "limits", "exceeded"),
    [
        ("while True: pass", Limits(seconds=1), "time"),
        ("import time; time.sleep(100)", Limits(seconds=1), "time"),
        ("import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(100)", Limits(seconds=1), "time"),
        ("import sys\nfor _ in range(1024): sys.stdout.write('x' * 1024**2)", FEW, "output"),
        ("import sys\nfor _ in range(1024): sys.stderr.write('x' * 1024**2)", FEW, "output"),
        ("n = 0\nwhile True:\n    open(f'f{n}', 'wb').write(b'x' * 4 * 1024**2); n += 1", FEW, "disk"),
        ("n = 0\nwhile True:\n    open(f'/tmp/f{n}', 'wb').write(b'x' * 4 * 1024**2); n += 1", FEW, "disk"),
        (
            "import os, time\nheld = []\nfor n in range(10):\n    held.append(open('f', 'wb'))\n"
            "    held[-1].write(b'x' * 4 * 1024**2)\n    os.unlink('f')\ntime.sleep(100)",
            FEW,
            "disk",
        ),
        (
            "import os, time\nfor _ in range(7):\n    if os.fork() == 0:\n"
            "        held = b'x' * 250 * 1024**2\n        time.sleep(100)\ntime.sleep(100)",
            FEW,
            "memory",
        ),
    ],
)
def test_a_program_beyond_a_limit_is_ended_with_all_that_it_started(code, limits, exceeded):
    started = time.monotonic()
    done, _ = _run(code, limits)
    assert done.exceeded == exceeded
    assert time.monotonic() - started < 60
    assert len(done.output) + len(done.error) <= 2 * limits.output_bytes


def test_a_program_cannot_pass_for_a_broken_sandbox():
    done, _ = _run("import sys; sys.exit('bwrap: no sandbox here')")
    assert done.exit_code == 1 and done.error == "bwrap: no sandbox here\n"


def test_a_program_that_kills_its_parent_ends_itself():
    done, _ = _run("import os, time; os.kill(os.getppid(), 9); time.sleep(5); print('alive')")
    assert done.exit_code != 0 and "alive" not in done.output


def test_no_host_folder_is_named_inside():
    done, _ = _run("import glob\nfor name in glob.glob('/proc/*/cmdline'): print(open(name).read())")
    assert done.exit_code == 0 and "python3" in done.output and "lpc-sandbox" not in done.output
    assert sys.prefix not in done.output


def test_a_full_shared_memory_is_the_programs_own_trouble():
    done, _ = _run("n = 0\nwhile True:\n    open(f'/dev/shm/f{n}', 'wb').write(b'x' * 4 * 1024**2); n += 1")
    assert done.exit_code == 1 and "No space left" in done.error


@pytest.mark.parametrize(
    "call",
    [
        "os.memfd_create('hidden')",
        "libc.syscall(447, 0)",  # memfd_secret
        "libc.shmget(0, 1024**2, 0o1600)",
        "libc.msgget(0, 0o1600)",
    ],
)
def test_memory_that_no_limit_counts_is_not_to_be_had(call):
    code = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    done, _ = _run(f"{code}if {call} == -1:\n    raise OSError(ctypes.get_errno(), 'refused')\nprint('had it')")
    assert done.exit_code == 1 and "[Errno 38]" in done.error and "had it" not in done.output


NEST = "import os\nos.chdir('/root')\nfor _ in range({}):\n    os.mkdir('{}')\n    os.chdir('{}')\n"


@pytest.mark.parametrize(
    ("code", "exceeded"),
    [
        (NEST.format(1200, "d", "d"), ""),
        (NEST.format(30, "n" * 200, "n" * 200) + "import time\ntime.sleep(100)", "disk"),
        ("import os\nos.mkdir('/root/hidden')\nos.chmod('/root/hidden', 0)\nos.chmod('/root', 0)", ""),
    ],
)
def test_trees_that_are_deep_or_locked_are_counted_and_removed(code, exceeded):
    with open_sandbox() as sandbox:
        sandbox_module.own(sandbox, sandbox.home)
        done = sandbox.run(["python3", "-c", code], replace(FEW, disk_bytes=8 * MIB, seconds=20))
        assert done.exceeded == exceeded, done.error
    assert not sandbox.home.parent.exists()


def test_a_daemon_ends_with_the_program_that_left_it():
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1)\n    open('/root/late', 'w')\nprint('out')"
    with open_sandbox() as sandbox:
        sandbox_module.own(sandbox, sandbox.home)
        assert sandbox.run(["python3", "-c", code], FEW).output == "out\n"
        time.sleep(1.5)
        assert not (sandbox.home / "root" / "late").exists()


@pytest.mark.parametrize("wait_seconds", [0.0, 0.02, 0.5])
def test_a_killed_runner_leaves_no_process_behind(tmp_path, wait_seconds):
    marker = f"marker-{os.getpid()}-{time.monotonic_ns()}"
    runner = (
        "from lpc_ray.verification.sandbox.bubblewrap import open_sandbox, own\n"
        "from lpc_ray.verification.sandbox.limits import Limits\n"
        "with open_sandbox() as sandbox:\n    own(sandbox, sandbox.home)\n"
        f"    sandbox.run(['python3', '-c', 'import time; time.sleep(300)', '{marker}'], Limits(seconds=300))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", runner], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    )

    def alive() -> list[psutil.Process]:
        found = [child for child in psutil.process_iter(["cmdline"]) if marker in (child.info["cmdline"] or [])]
        return [child for child in found if child.pid != process.pid]

    _soon(lambda: bool(alive()), seconds=60)
    time.sleep(wait_seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _soon(lambda: not alive())


def test_without_bubblewrap_nothing_runs_unless_it_was_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VerificationError, match="bwrap, prlimit, setpriv not found.*--unsandboxed"):
        check_available()
    with pytest.raises(VerificationError, match="bwrap"), open_sandbox():
        pass
    check_available(unsandboxed=True)


def test_an_unsandboxed_program_runs_in_the_folder_under_the_same_limits():
    with open_sandbox(unsandboxed=True) as sandbox:
        done = sandbox.run(["python3", "-c", "import os; open('out', 'w').write('x'); print(os.getcwd())"], FEW)
        assert done.output.strip() == str(sandbox.home / "root") and (sandbox.home / "root" / "out").exists()
        assert sandbox.run(["python3", "-c", "import time; time.sleep(100)"], Limits(seconds=1)).exceeded == "time"
        daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(20)\nprint('out')"
        assert sandbox.run(["python3", "-c", daemon], FEW).output == "out\n"


def test_a_sandbox_that_cannot_start_is_an_error_of_ours(tmp_path):
    (tmp_path / "root").mkdir()
    with pytest.raises(VerificationError, match="sandbox: bwrap: .*absent"):
        Sandbox(tmp_path).run(["true"], FEW, read_only={"/x": tmp_path / "absent"})
