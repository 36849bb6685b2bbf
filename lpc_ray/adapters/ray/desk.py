"""The desk between the Tune trials and the training group: which arm trains next, what was reported, what was decided."""

import asyncio
from collections import deque
from typing import Any

from lpc_ray.run.arms import Arm
from lpc_ray.run.checkpoints import ArmFailure, Checkpoint


class TrainingDesk:
    """Queue of arms, and per arm the checkpoints reported and the decisions awaited. An async actor."""

    def __init__(self):
        self._queue: deque[Arm] = deque()
        self._current: Arm | None = None
        self._events: dict[str, asyncio.Queue] = {}
        self._decisions: dict[tuple[str, int], asyncio.Future] = {}
        self._stopped: set[str] = set()
        self._changed = asyncio.Event()
        self._closed = False
        self._failure: str | None = None
        self._failures: dict[str, ArmFailure] = {}
        self._arms_done = 0
        self._last_step: tuple[str, int, float] | None = None

    async def enrol(self, arm: Arm) -> None:
        """Called by a trial: train this arm when its turn comes."""
        self._events[arm.id] = asyncio.Queue()
        if self._failure is not None:
            await self._events[arm.id].put({"error": self._failure})
            return
        self._stopped.discard(arm.id)
        self._queue.append(arm)
        self._changed.set()

    async def next_event(self, arm_id: str) -> dict[str, Any]:
        """Called by a trial: {"checkpoint": …}, {"end": …}, {"failure": …} of this arm or {"error": …} of the group."""
        return await self._events[arm_id].get()

    async def decide(self, arm_id: str, step: int, go_on: bool) -> None:
        """Called by a trial once a checkpoint is verified and reported."""
        self._resolve((arm_id, step), go_on)

    async def stop(self, arm_id: str) -> None:
        """Called by the sweep when the scheduler ended a trial, or the trial failed."""
        self._stopped.add(arm_id)
        self._queue = deque(arm for arm in self._queue if arm.id != arm_id)
        for key in [key for key in self._decisions if key[0] == arm_id]:
            self._resolve(key, False)

    async def close(self) -> None:
        self._closed = True
        self._changed.set()

    async def fail(self, reason: str) -> None:
        """Called when the group is beyond recovery: every trial that waits, or comes later, gets the reason."""
        self._failure = reason
        for events in self._events.values():
            await events.put({"error": reason})

    async def next_arm(self) -> Arm | None:
        """Called by worker 0: the arm in progress, else the next; waits for one; None when the desk is closed."""
        while self._current is None:
            if self._queue:
                self._current = self._queue.popleft()
            elif self._closed:
                return None
            else:
                self._changed.clear()
                await self._changed.wait()
        return self._current

    async def current_arm(self) -> Arm | None:
        """Called by every worker: the arm in progress."""
        return self._current

    async def note_failure(self, arm_id: str, failure: ArmFailure) -> None:
        """Called by any worker, before the workers agree on how an arm ends; the first failure is the one that counts."""
        self._failures.setdefault(arm_id, failure)

    async def failure(self, arm_id: str) -> ArmFailure | None:
        return self._failures.get(arm_id)

    async def arms_done(self) -> int:
        return self._arms_done

    async def report(self, arm_id: str, checkpoint: Checkpoint) -> bool:
        """Called by worker 0: hand the checkpoint on (once, also when a new worker repeats it); returns whether to go on."""
        key = (arm_id, checkpoint.step)
        if key not in self._decisions:
            self._decisions[key] = asyncio.get_running_loop().create_future()
            await self._events[arm_id].put({"checkpoint": checkpoint})
        if arm_id in self._stopped:
            return False
        return await asyncio.shield(self._decisions[key])

    async def note_step(self, arm: str, step: int, loss: float) -> None:
        """Called by worker 0 after every step; nobody waits for it. arm: its name."""
        self._last_step = (arm, step, loss)

    async def last_step(self) -> tuple[str, int, float] | None:
        """Arm, step and loss of the latest step; None before the first."""
        return self._last_step

    async def finish(self, arm_id: str, failure: ArmFailure | None) -> None:
        """Called by worker 0 when an arm is done with, and by a worker on which alone it failed; only the first call counts."""
        if self._current is None or self._current.id != arm_id:
            return
        self._current = None
        self._arms_done += 1
        self._failures.pop(arm_id, None)
        self._decisions = {key: future for key, future in self._decisions.items() if key[0] != arm_id}
        await self._events[arm_id].put({"failure": failure} if failure else {"end": True})

    def _resolve(self, key: tuple[str, int], go_on: bool) -> None:
        future = self._decisions.get(key)
        if future is not None and not future.done():
            future.set_result(go_on)
