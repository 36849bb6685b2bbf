"""Progress for people: one line per event, with the time since the start and the stage, and how long it will yet take."""

import time


class Console:
    """Call it with a stage and a text; lines go to standard output as they happen."""

    def __init__(self):
        self._started = time.monotonic()

    def __call__(self, stage: str, text: str) -> None:
        print(f"[{clock(time.monotonic() - self._started)}] {stage:<7} {text}", flush=True)


def clock(seconds: float) -> str:
    """Seconds as minutes:seconds."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes:02d}:{rest:02d}"


class Pace:
    """How long the sweep has yet to run, from what a training step and a verified checkpoint have cost so far."""

    def __init__(self, arms: list[str], checkpoints: list[int]):
        self._ahead = {arm: list(checkpoints) for arm in arms}
        self._at: dict[str, tuple[int, float]] = {}
        self._steps, self._training_seconds = 0, 0.0
        self._verified, self._other_seconds = 0, 0.0
        self._last: float | None = None

    def left(self, arm: str, step: int, training_seconds: float, now: float) -> float | None:
        """Take note of a verified checkpoint; returns the seconds left if every open arm runs to its last step.

        None before anything was measured. A checkpoint that a rerun merely repeats, in less time than its training took,
        is not counted.
        """
        before, trained = self._at.get(arm, (step, training_seconds))
        self._at[arm] = (step, training_seconds)
        if self._last is not None and now - self._last >= training_seconds - trained:
            self._steps += step - before
            self._training_seconds += training_seconds - trained
            self._verified += 1
            self._other_seconds += now - self._last - (training_seconds - trained)
        self._last = now
        if arm in self._ahead:
            self._ahead[arm] = [ahead for ahead in self._ahead[arm] if ahead > step]
        if not self._steps:
            return None
        steps = sum(ahead[-1] - self._at.get(key, (0, 0.0))[0] for key, ahead in self._ahead.items() if ahead)
        checkpoints = sum(map(len, self._ahead.values()))
        each_step, each_checkpoint = self._training_seconds / self._steps, self._other_seconds / self._verified
        return steps * each_step + checkpoints * each_checkpoint

    def ended(self, arm: str) -> None:
        self._ahead.pop(arm, None)
