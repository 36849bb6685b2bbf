"""Progress for people: one line per event, with the time since the start and the stage."""

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
