"""How long a sweep has yet to run."""


class Pace:
    """How long a sweep has yet to run, from the time its steps have taken so far, verification included."""

    def __init__(self, arms: list[str], last_step: int):
        self._last_step = last_step
        self._ahead = dict.fromkeys(arms, last_step)
        self._started: float | None = None
        self._steps = 0

    def left(self, arm: str, trained_step: int, is_replayed: bool, now: float) -> float | None:
        """Take note of a report; returns the seconds left if every open arm runs to its last step.

        trained_step: how far the arm's training has come. is_replayed: the report repeats what an earlier session did. None
        before there is anything to go by: the first report starts the clock.
        """
        if arm in self._ahead:
            taken = trained_step - (self._last_step - self._ahead[arm])
            self._ahead[arm] = self._last_step - trained_step
            if self._started is None:
                self._started = now
            elif not is_replayed:
                self._steps += taken
        if self._started is None or not self._steps:
            return None
        return (now - self._started) / self._steps * sum(self._ahead.values())

    def ended(self, arm: str) -> None:
        self._ahead.pop(arm, None)
