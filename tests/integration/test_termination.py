"""A job that is asked to end says so in one line and leaves no process of Ray's behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
PROGRAM = """
import time
from pathlib import Path
from lpc_ray.adapters.ray.machines import connect
from lpc_ray.config.job import load
from lpc_ray.terminal import exit_on_error
from lpc_ray.run.plan import make_plan

with exit_on_error():
    connect(make_plan(load(Path("jobs/configs/pi_scale.cpu.yaml"))))
    print("connected", flush=True)
    time.sleep(300)
"""


def test_sigterm_ends_a_job_as_ctrl_c_does():
    job = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAY_ADDRESS": ""},
    )
    assert job.stdout.readline() == "connected\n"
    started = psutil.Process(job.pid).children(recursive=True)
    assert any("raylet" in process.name() for process in started)
    job.send_signal(signal.SIGTERM)
    _, output = job.communicate(timeout=60)
    assert job.returncode == 130
    assert output.splitlines()[-1].startswith("interrupted:") and "SIGTERM received" not in output
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive
