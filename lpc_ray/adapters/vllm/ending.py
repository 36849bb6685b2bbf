"""Ending vLLM: its processes, and the memory they share.

Ray ends an actor by killing the processes below it. Those of vLLM are then no longer there to unlink their queues in /dev/shm,
some hundred megabytes, nor is the process that Python keeps for the case.
"""

import multiprocessing
import time
from collections.abc import Collection
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import psutil

from lpc_ray.adapters.segments import held_below

STOP_SECONDS = 5


def unlink_queues() -> None:
    """Unlink the queues that vLLM's processes below this one share. To be called once all of them have started.

    Who has a queue keeps it; so however they end, nothing is left.
    """
    for segment in held_below():
        segment.unlink(missing_ok=True)


def end_engine(engine: Any, others: Collection[BaseProcess] = ()) -> None:
    """End vLLM's processes below this one and unlink what they shared. Blocks, up to two times `STOP_SECONDS`.

    engine: an `AsyncLLM`, or None while it starts. others: children of this process that are not the engine's.
    """
    own = [process for process in multiprocessing.active_children() if process not in others]
    below = [child for process in own for child in _below(process)]
    if engine is not None:
        engine.shutdown(STOP_SECONDS)
    for process in own:
        process.terminate()
    until = time.monotonic() + STOP_SECONDS
    for process in own:
        process.join(max(0.0, until - time.monotonic()))
    _, alive = psutil.wait_procs(below, timeout=max(0.0, until - time.monotonic()))
    for process in (*own, *alive):
        process.kill()
    for process in own:
        process.join(STOP_SECONDS)
    if not multiprocessing.active_children():
        tracker: Any = resource_tracker._resource_tracker
        tracker._stop()  # when nobody is left, it unlinks what they have left


def _below(process: BaseProcess) -> list[psutil.Process]:
    """All processes below one; none where it has ended."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
