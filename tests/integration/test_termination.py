"""A job that is asked to end says so in one line, within seconds, and leaves no process and no shared memory behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.shared_memory import segments_of

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ray
from ray import tune

from lpc_ray.adapters.pipeline.pipeline import run_stages
from lpc_ray.adapters.pipeline.stage import stage
from lpc_ray.adapters.ray.cluster import connect
from lpc_ray.config.job import load
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.plan import make_plan
from lpc_ray.storage import Store
from lpc_ray.terminal import exit_on_error

READY = "now it may end"


class Waiting:
    def for_ever(self, batch=None):
        time.sleep(600)
        return batch

    __call__ = for_ever


def waiting_actor():
    return ray.remote(Waiting).options(num_cpus=0, max_concurrency=8).remote()


def asleep(context):
    print(READY, flush=True)
    time.sleep(600)


def waits_in_an_actor(context):
    call = waiting_actor().for_ever.remote()
    print(READY, flush=True)
    ray.get(call)


def waits_in_threads(context):
    actor = waiting_actor()
    threads = ThreadPoolExecutor(2)
    calls = [threads.submit(lambda: ray.get(actor.for_ever.remote())) for _ in range(2)]
    print(READY, flush=True)
    try:
        calls[0].result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def in_a_dataset(context):
    class Told(Waiting):
        def __call__(self, batch):
            Path(told).touch()
            return super().for_ever(batch)

    def say_when_told():
        while not Path(told).exists():
            time.sleep(0.1)
        print(READY, flush=True)

    told = str(context.run.store.path("told"))
    threading.Thread(target=say_when_told, daemon=True).start()
    pool = ray.data.ActorPoolStrategy(size=1)
    rows = ray.data.range(4).map_batches(Told, batch_size=1, num_cpus=0.1, compute=pool).iter_rows()
    next(iter(rows))


def in_a_trial(context):
    class Told(tune.Callback):
        def on_trial_result(self, **info):
            print(READY, flush=True)

    def trial(config):
        tune.report({"step": 0})
        time.sleep(600)

    tune.Tuner(
        tune.with_resources(trial, {"cpu": 0.1}),
        run_config=tune.RunConfig(storage_path=context.run.scratch("ray_tune"), callbacks=[Told()], verbose=0),
    ).fit()


with exit_on_error():
    plan = make_plan(load("jobs/configs/pi_scale.cpu.yaml"))
    print("planned", flush=True)
    run_stages(plan, RunFolder(Store(sys.argv[1])), [stage()(globals()[sys.argv[2]])])
"""


def started(*arguments: str) -> subprocess.Popen:
    """A Python program in a process group of its own, which a terminal's Ctrl-C reaches as a whole."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAY_ADDRESS": ""},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def below(job: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(job.pid).children(recursive=True)


def ended(job: subprocess.Popen, children: list[psutil.Process], seconds: float) -> list[str]:
    """What the job said on standard error, ended within so many seconds, with all the processes it had started.

    Without the line by which Ray, at its start, tells the log level that it was given.
    """
    try:
        _, output = job.communicate(timeout=seconds)
    finally:
        job.kill()
        _, alive = psutil.wait_procs(children, timeout=60)
        alive = [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
        for process in alive:
            process.kill()
    assert not alive
    return [line for line in output.splitlines() if "Set ray log level" not in line]


@pytest.mark.parametrize(
    ("stage", "numbers"),
    [
        ("asleep", [signal.SIGTERM]),
        ("waits_in_an_actor", [signal.SIGINT, signal.SIGINT]),
        ("waits_in_threads", [signal.SIGINT]),
        ("in_a_dataset", [signal.SIGINT]),
        ("in_a_trial", [signal.SIGINT]),
        ("in_a_trial", [signal.SIGTERM, signal.SIGINT, signal.SIGINT]),
    ],
)
def test_one_signal_ends_a_stage_in_one_line_and_more_change_nothing(tmp_path, stage, numbers):
    job = started("-c", PROGRAM, str(tmp_path / "run"), stage)
    assert job.stdout is not None
    while job.stdout.readline() not in ("now it may end\n", ""):
        pass
    time.sleep(1)
    children = below(job)
    assert any("raylet" in process.name() for process in children)
    for number in numbers:
        os.killpg(job.pid, number) if number == signal.SIGINT else job.send_signal(number)
        time.sleep(0.5)
    output = ended(job, children, 60)
    assert job.returncode == 130
    assert output == ["interrupted: what is stored is whole, and a rerun goes on from it"]


@pytest.mark.parametrize("seconds", [0.3, 1, 3, 6])
def test_a_signal_while_a_job_starts_is_one_line_too(tmp_path, seconds):
    job = started("jobs/induce.py", f"store.url={tmp_path}")
    time.sleep(seconds)
    children = below(job)
    os.killpg(job.pid, signal.SIGINT)
    output = ended(job, children, 60)
    assert output == ["interrupted: what is stored is whole, and a rerun goes on from it"]


ENGINE = """
import multiprocessing
import os
import signal
import time
from multiprocessing.shared_memory import SharedMemory

from lpc_ray.adapters.vllm.ending import end_engine


def share(told, below):
    if below:
        multiprocessing.get_context("spawn").Process(target=share, args=(told, below - 1)).start()
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    told.put(SharedMemory(create=True, size=4096).name)
    time.sleep(600)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    context.Process(target=share, args=(told, 1)).start()
    names = [told.get(timeout=60) for _ in range(2)]
    print(*names, flush=True)
    end_engine(None)
    print([name for name in names if os.path.exists(f"/dev/shm/{name}")])
    assert not multiprocessing.active_children()
"""


def test_processes_that_do_not_listen_are_ended_and_what_they_share_is_unlinked(tmp_path):
    program = tmp_path / "engine.py"
    program.write_text(textwrap.dedent(ENGINE))
    job = subprocess.run(
        [sys.executable, str(program)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert job.returncode == 0, job.stderr
    names, left = job.stdout.splitlines()
    assert len(names.split()) == 2 and left == "[]"


@pytest.mark.parametrize(
    ("seconds", "number", "whom"),
    [
        (1, signal.SIGINT, "group"),
        (8, signal.SIGTERM, "server"),
        (16, signal.SIGTERM, "group"),
        (24, signal.SIGINT, "group"),
    ],
)
def test_a_signal_while_a_server_starts_is_one_line_and_leaves_nothing(tmp_path, seconds, number, whom):
    arguments = [f"artifacts={tmp_path}/artifacts", f"host_tier={tmp_path}/tier", "--port", "8391"]
    server = started("-m", "serve.app", *arguments)
    time.sleep(seconds)
    children = below(server)
    segments = segments_of(server.pid)
    (os.killpg if whom == "group" else os.kill)(server.pid, number)
    output = ended(server, children, 30)
    assert server.returncode == 130 and output[-1] == "interrupted: the server had not started"
    assert not [line for line in output[:-1] if "Traceback" in line or "failed" in line]
    assert not {path for path in segments if path.exists()} and not list((tmp_path / "tier").glob("*.lock"))


def test_replicas_that_do_not_fit_the_machine_are_one_line(tmp_path):
    server = started("-m", "serve.app", "replicas=1000", f"artifacts={tmp_path}", f"host_tier={tmp_path}/tier")
    output = ended(server, [], 60)
    assert server.returncode == 2
    assert output[-1].startswith(
        "error: replicas: got 1000 with 1 CPUs each and 0.1 for the HTTP side, wanted at most the "
    )


SHARING = """
import os
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory

from lpc_ray.adapters.segments import Segments

CHILD = '''
import sys
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory

segment = SharedMemory(create=True, size=4096)
resource_tracker.unregister(segment._name, "shared_memory")  # as if who would unlink it had been killed as well
print(segment.name, flush=True)
sys.stdin.read()
'''
child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
name, own = child.stdout.readline().strip(), SharedMemory(create=True, size=4096)
segments = Segments()
segments.look()
child.kill()
child.wait()
print(os.path.exists(f"/dev/shm/{name}"))
segments.sweep()
print(os.path.exists(f"/dev/shm/{name}"), os.path.exists(f"/dev/shm/{own.name}"))
own.close()
own.unlink()
"""


def test_what_killed_processes_shared_is_unlinked_and_what_others_share_is_not(tmp_path):
    program = tmp_path / "sharing.py"
    program.write_text(SHARING)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "False", "True"]
