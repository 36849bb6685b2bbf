"""The sweep while it runs: TensorBoard logs through Ray Tune, and gauges that Ray's metrics agents show to Prometheus.

`cluster/dashboards/sweep.json` is the Grafana dashboard of these gauges; Ray prefixes their names with `ray_`.
"""

import math
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

from ray.tune.logger import TBXLoggerCallback
from ray.tune.result import TIMESTEPS_TOTAL, TRAINING_ITERATION
from ray.util.metrics import Gauge

from lpc_ray.terminal import repeated

STEP = "step"
ARM_TAGS = ("run", "arm")
REFRESH_SECONDS = 1.0
STATES = ("waiting", "running", "finished", "stopped", "failed")


class OptimizerStepTensorBoard(TBXLoggerCallback):
    """Tune's own TensorBoard log, with the optimizer step on the x axis instead of the number of reports."""

    def log_trial_result(self, iteration, trial, result) -> None:
        if STEP in result:
            step = result[STEP]
            super().log_trial_result(iteration, trial, {**result, TIMESTEPS_TOTAL: step, TRAINING_ITERATION: step})


class SweepGauges:
    """Gauges of one sweep, set by its driver and picklable, as Tune wants its callbacks. `arms`: the names of all of them.

    Ray exports a gauge once for each time it is set, so that one which is set at checkpoints is gone from Prometheus between
    them: inside `shown` every gauge is set again and again.
    """

    def __init__(self, run: str, arms: list[str]):
        self._run = run
        self._states = dict.fromkeys(arms, "waiting")
        self._last: dict[str, tuple[float, float]] = {}
        self._shown: dict[tuple[Gauge, tuple[tuple[str, str], ...]], float] = {}
        self._score = Gauge("lpc_sweep_score", "Verified share of the tune cases at the last step", ARM_TAGS)
        self._by_step = Gauge("lpc_sweep_score_at_step", "Verified share of the tune cases", (*ARM_TAGS, "step"))
        self._step = Gauge("lpc_sweep_step", "Optimizer step of the last verified checkpoint", ARM_TAGS)
        self._loss = Gauge("lpc_sweep_loss", "Mean loss per target token at the last verified checkpoint", ARM_TAGS)
        self._speed = Gauge(
            "lpc_sweep_tokens_per_second", "Tokens trained on per second between two checkpoints", ARM_TAGS
        )
        self._arms = Gauge("lpc_sweep_arms", "Arms by state", ("run", "state"))
        self._count()

    def shown(self) -> AbstractContextManager[None]:
        return repeated(self._set_again, REFRESH_SECONDS)

    def result(self, arm: str, result: dict[str, Any]) -> None:
        """A verified checkpoint, as the trial reported it. Without a scored case there is no score to show."""
        tags = {"run": self._run, "arm": arm}
        if math.isfinite(result["score"]):
            self._set(self._score, result["score"], tags)
            self._set(self._by_step, result["score"], {**tags, "step": str(result[STEP])})
        self._set(self._step, result[STEP], tags)
        if result.get("loss") is not None:
            self._set(self._loss, result["loss"], tags)
        tokens, seconds = result["tokens_seen"], result["training_seconds"]
        earlier_tokens, earlier_seconds = self._last.get(arm, (0, 0.0))
        if seconds > earlier_seconds:
            self._set(self._speed, (tokens - earlier_tokens) / (seconds - earlier_seconds), tags)
        self._last[arm] = (tokens, seconds)
        self._states[arm] = "running"
        self._count()

    def ended(self, arm: str, state: str) -> None:
        """state: finished, stopped or failed."""
        self._states[arm] = state
        self._count()

    def _count(self) -> None:
        counts = Counter(self._states.values())
        for state in STATES:
            self._set(self._arms, counts[state], {"run": self._run, "state": state})

    def _set(self, gauge: Gauge, value: float, tags: dict[str, str]) -> None:
        self._shown[gauge, tuple(tags.items())] = value
        gauge.set(value, tags)

    def _set_again(self) -> None:
        for (gauge, tags), value in list(self._shown.items()):
            gauge.set(value, dict(tags))
