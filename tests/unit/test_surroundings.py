"""Whatever starts the tests, they run in the same surroundings."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _umask() -> int:
    umask = os.umask(0o022)
    os.umask(umask)
    return umask


def test_tests_run_in_the_usual_surroundings():
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    assert signal.getsignal(signal.SIGHUP) == signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    assert _umask() == 0o022
    assert time.strftime("%H", time.localtime(0)) == "00" and os.environ["LC_ALL"] == "C.UTF-8"
    assert os.access(Path.home(), os.W_OK) and "RAY_ADDRESS" not in os.environ


def test_nohup_cron_and_containers_change_nothing_of_that():
    odd = {
        "LC_ALL": "C",
        "TZ": "Asia/Kathmandu",
        "HOME": "/nonexistent",
        "RAY_ADDRESS": "127.0.0.1:1",
        "FORCE_COLOR": "1",
    }
    name = f"tests/unit/test_surroundings.py::{test_tests_run_in_the_usual_surroundings.__name__}"
    command = f"trap '' INT HUP CHLD; umask 077; exec {sys.executable} -m pytest -q -p no:xdist {name}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=os.environ | odd, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    assert not Path("/nonexistent").exists()
