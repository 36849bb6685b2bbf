"""The sweep on Ray Tune: a trial per arm, ASHA on the verified score.

A trial is a small client: it replays what is stored of its arm, enrols the arm at the training desk if steps are missing,
verifies each checkpoint through the engine pool and reports the score. Everything that must survive is stored before the
report, because a stop ends the trial there.
"""

import functools
import logging
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import Callback, RunConfig, Stopper, TuneConfig
from ray.tune.schedulers import ASHAScheduler

from lpc_ray.adapters.ray.engine_pool import EnginePool
from lpc_ray.adapters.ray.live_view import OptimizerStepTensorBoard
from lpc_ray.artifacts.store import fetch
from lpc_ray.config.recipe import StoppingRecipe
from lpc_ray.errors import LPCError
from lpc_ray.records import Outcome, PrefixRef, Tally
from lpc_ray.run.arms import Arm
from lpc_ray.run.checkpoints import ArmStore, Checkpoint
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.scores import keep_score
from lpc_ray.run.stopping import ended, tolerated
from lpc_ray.verification.outcomes import Answerer, Verifier

METRIC, TIME = "score", "step"
VERIFIED_TOGETHER = 4


@dataclass(frozen=True)
class TrialSetup:
    """What every trial shares; picklable. A trial's config names its arm, which TensorBoard and Tune's folders show."""

    arms: dict[str, Arm]
    run: RunFolder
    verifier: Verifier
    pool: EnginePool
    desk: Any
    first_decision: int
    last_step: int
    cache: Path


class TolerantASHA(ASHAScheduler):
    """ASHA that stops an arm only when its score is more than `errors` standard errors below the rung's cutoff (`tolerated`).

    Scores are counts over `num_cases` cases. Plain ASHA compares strictly, so that one question fewer ends a good arm.
    Source: ASHA, arXiv 1810.05934, algorithm 2; the tolerance is ours.
    """

    def __init__(self, num_cases: int, errors: float, **settings: Any):
        super().__init__(**settings)
        for bracket in self._brackets:
            bracket.cutoff = _tolerant(bracket.cutoff, num_cases, errors)


def _tolerant(cutoff: Callable, num_cases: int, errors: float) -> Callable:
    def lowered(recorded: dict) -> float | None:
        strict = cutoff(recorded)
        return None if strict is None else tolerated(float(strict), num_cases, errors)

    return lowered


def prefix_answerer(run: RunFolder, digest: str, num_tokens: int, cache: Path) -> Answerer:
    """An artifact of the run as something to verify."""
    folder = fetch(run.artifacts, digest, cache)
    return Answerer(digest, prefix=PrefixRef(digest=digest, folder=str(folder), num_tokens=num_tokens))


def run_trial(config: dict[str, Any], setup: TrialSetup) -> None:
    """The trainable: one arm from its stored steps to its last, a report per checkpoint.

    Before the grace step no report can stop an arm, so training goes on and up to `VERIFIED_TOGETHER` checkpoints are
    verified in one go: the engine answers many cases at once faster than few.
    """
    arm = setup.arms[config["arm"]]
    store = ArmStore(setup.run.arm(arm.id))
    end = store.end(setup.verifier.outcomes.protocol)
    recorded = [one for one in store.checkpoints() if end is None or one.step <= end["step"]]
    _verify_and_report(setup, arm, recorded, is_replayed=True)
    failure = store.failure()
    is_over = bool(recorded) and recorded[-1].step >= setup.last_step or failure is not None and failure.is_final
    if end is not None or is_over:
        return
    store.set_failure(None)
    seen = {checkpoint.step for checkpoint in recorded}
    ray.get(setup.desk.enrol.remote(arm))
    waiting: list[Checkpoint] = []
    while True:
        event: Any = ray.get(setup.desk.next_event.remote(arm.id))
        if "error" in event:
            raise LPCError(f"arm {arm.name}: {event['error']}")
        if "end" in event:
            return
        if "failure" in event:
            store.set_failure(event["failure"])
            _verify_and_report(setup, arm, waiting, is_replayed=False)
            return
        checkpoint = event["checkpoint"]
        if checkpoint.step not in seen:
            waiting.append(checkpoint)
        if checkpoint.step >= setup.first_decision or len(waiting) == VERIFIED_TOGETHER:
            _verify_and_report(setup, arm, waiting, is_replayed=False)
            waiting = []
        ray.get(setup.desk.decide.remote(arm.id, checkpoint.step, True))


def _verify_and_report(setup: TrialSetup, arm: Arm, checkpoints: list[Checkpoint], is_replayed: bool) -> None:
    answerers = [prefix_answerer(setup.run, one.digest, arm.num_tokens, setup.cache) for one in checkpoints]
    verified = setup.verifier.verify_all([(answerer, "tune") for answerer in answerers], setup.pool.generate)
    for checkpoint, answerer, outcomes in zip(checkpoints, answerers, verified, strict=True):
        keep_score(setup.run, answerer, "tune", setup.verifier.outcomes)
        pace = {"trained_step": checkpoints[-1].step, "is_replayed": is_replayed}
        tune.report({**asdict(checkpoint), **score_of(outcomes), **pace, "arm": arm.name})


def score_of(outcomes: tuple[Outcome, ...]) -> dict[str, float]:
    """passed, total and score over the outcomes that count; the score of none is NaN, by which ASHA stops no arm."""
    tally = Tally.of(outcomes)
    return {"passed": tally.passed, "total": tally.total, METRIC: math.nan if tally.score is None else tally.score}


def _kept(method: Callable[..., None]) -> Callable[..., None]:
    """A callback whose LPCError is kept as the watcher's: Tune would print what it raises and end without its words."""

    @functools.wraps(method)
    def called(self: "SweepWatcher", *args, **kwargs) -> None:
        if self.error is None:
            try:
                method(self, *args, **kwargs)
            except LPCError as error:
                self.error = error

    return called


class SweepWatcher(Callback):
    """In the driver: reports ended trials to the desk, stores how arms ended, and hands every result on.

    error: the first LPCError that it met, after which it does nothing more.
    """

    def __init__(self, trials: TrialSetup, on_result: Callable[[Arm, dict], None], on_end: Callable[[Arm, dict], None]):
        self.trials = trials
        self.on_result = on_result
        self.on_end = on_end
        self.error: LPCError | None = None

    @_kept
    def on_trial_result(self, iteration, trials, trial, result, **info) -> None:
        if METRIC in result:
            self.on_result(self.trials.arms[trial.config["arm"]], result)

    @_kept
    def on_trial_complete(self, iteration, trials, trial, **info) -> None:
        arm = self.trials.arms[trial.config["arm"]]
        ray.get(self.trials.desk.stop.remote(arm.id))
        store, protocol = ArmStore(self.trials.run.arm(arm.id)), self.trials.verifier.outcomes.protocol
        failure, end = store.failure(), store.end(protocol)
        if failure is not None:
            if failure.is_final:
                store.set_end(protocol, failure.status, failure.step)
            self.on_end(arm, asdict(failure))
            return
        if end is None:
            step = (trial.last_result or {}).get(TIME, 0)
            end = {"status": ended(step, self.trials.last_step), "step": step}
            store.set_end(protocol, end["status"], end["step"])
        self.on_end(arm, end)

    @_kept
    def on_trial_error(self, iteration, trials, trial, **info) -> None:
        arm = self.trials.arms[trial.config["arm"]]
        ray.get(self.trials.desk.stop.remote(arm.id))
        self.on_end(arm, {"status": "failed", "step": (trial.last_result or {}).get(TIME, 0)})


class _WhenWatcherFails(Stopper):
    """Ends all trials once the watcher has met an error."""

    def __init__(self, watcher: SweepWatcher):
        self._watcher = watcher

    def __call__(self, trial_id, result) -> bool:
        return self.stop_all()

    def stop_all(self) -> bool:
        return self._watcher.error is not None


def sweep(
    arms: list[Arm],
    setup: TrialSetup,
    stopping: StoppingRecipe,
    num_cases: int,
    watcher: SweepWatcher,
    name: str,
) -> list[str]:
    """Run all arms, one at a time, in the order given; returns the errors of failed trials.

    Raises: LPCError that the watcher met, which ends the sweep, or for what Ray Tune itself could not go on with.
    """
    scheduler = TolerantASHA(
        num_cases=num_cases,
        errors=stopping.tolerance_errors,
        time_attr=TIME,
        metric=METRIC,
        mode="max",
        grace_period=min(stopping.grace_steps, setup.last_step),
        reduction_factor=stopping.reduction_factor,
        max_t=setup.last_step + 1,
    )
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(run_trial, setup=setup), {"cpu": 0.1}),
        param_space={"arm": tune.grid_search([arm.name for arm in arms])},
        tune_config=TuneConfig(
            scheduler=scheduler, max_concurrent_trials=1, reuse_actors=True, trial_dirname_creator=folder_name
        ),
        run_config=RunConfig(
            name=name,
            storage_path=setup.run.scratch("ray_tune"),
            callbacks=[watcher, OptimizerStepTensorBoard()],
            stop=_WhenWatcherFails(watcher),
            verbose=0,
        ),
    )
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # it prints a traceback of what is returned here in a line
    try:
        results = tuner.fit()
    except Exception as error:
        raise watcher.error or LPCError(f"Ray Tune ended the sweep: {_last_line(error)}") from error
    if watcher.error is not None:
        raise watcher.error
    return [_last_line(error) for error in results.errors]


def _last_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return re.sub(r"\blpc_ray\.errors\.\w+: ", "", line)


def folder_name(trial: Any) -> str:
    """Where TensorBoard finds an arm: by the arm's own name."""
    return f"{trial.config['arm']}-{trial.trial_id}"
