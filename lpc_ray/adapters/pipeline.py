"""The arrow on Ray: induction → baselines → sweep → held-out verification → report, each stage resumable.

A stage does what the run's store does not hold yet; a run that is complete needs neither engine nor trainer.
"""

import datetime
import logging
import os
import time
from dataclasses import replace
from functools import cached_property

import ray

from lpc_ray import evidence
from lpc_ray.adapters.engine_pool import EnginePool, start_engine_pool
from lpc_ray.adapters.ray_data import InductionTask, induce
from lpc_ray.adapters.ray_train import GroupSetup, load_backbone, start_training_group
from lpc_ray.adapters.ray_tune import SweepWatcher, TrialSetup, prefix_subject, score_of, sweep
from lpc_ray.adapters.tracking import Tracker
from lpc_ray.analysis.ledger import best_step
from lpc_ray.analysis.report import REPORT_FILES, ReportSubject, printed_table, write_report
from lpc_ray.arm_store import ArmStore
from lpc_ray.artifact import fetch, publish
from lpc_ray.console import Console, clock
from lpc_ray.embedded_model import model_cache, resolve_model
from lpc_ray.errors import LPCError
from lpc_ray.matrix import Arm
from lpc_ray.plan import Plan
from lpc_ray.storage import Store
from lpc_ray.traces import TraceStore
from lpc_ray.verification.outcomes import Subject


def connect(plan: Plan) -> None:
    """Join the configured cluster, the one that submitted this job, or start a local Ray."""
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    cluster = plan.config.cluster
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address:
        ray.init(address=address, **quiet)
    else:
        ray.init(address="local", num_cpus=cluster.local_cpus, include_dashboard=True, **quiet)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)


class Pipeline:
    """The stages of one plan over one run folder."""

    def __init__(self, plan: Plan, run: Store, console: Console):
        self.plan = plan
        self.recipe = plan.config.recipe
        self.cluster = plan.config.cluster
        self.run = run
        self.say = console
        self.name = f"lpc-{plan.config.name}-{plan.fingerprint[:8]}"
        self.model = resolve_model(self.recipe.model.id)
        self.verifier = evidence.verifier(plan, run)
        self.cache = model_cache().parent / "prefixes"
        run.check_writable()
        self.tracker = Tracker(plan.config, plan.fingerprint, run)

    @cached_property
    def pool(self) -> EnginePool:
        """The engine pool, started on first use and waited for."""
        self.say("engine", f"starting {self.cluster.engine.replicas} vLLM engine(s) with {self.recipe.model.id}")
        started = time.monotonic()
        pool, self._engines, ready = start_engine_pool(self.name, self.recipe.model, self.cluster.engine)
        ray.get(ready)
        self.say("engine", f"ready after {clock(time.monotonic() - started)}")
        return pool

    def induce(self) -> None:
        """Make the missing traces of every trace set."""
        for arm in self.plan.trace_sets():
            units = self.plan.units(arm.induction, arm.induction_seed)
            family = self.plan.families[arm.induction]
            task = InductionTask(
                family=arm.induction,
                settings=self.recipe.induction.families[arm.induction],
                seed=arm.induction_seed,
                model=self.recipe.model.id,
                revision=self.recipe.model.revision,
                system=self.recipe.prompt.system,
                max_trace_tokens=self.cluster.engine.max_model_len,
                pool=None,
                store=self.run / f"traces/{arm.traces}",
            )
            self._induce(arm, task, units, needs_teacher=family.needs_teacher())

    def _induce(self, arm: Arm, task: InductionTask, units: list, needs_teacher: bool) -> None:
        missing = len({unit.id for unit in units} - TraceStore(task.store).units())
        if missing:
            pool = self.pool if needs_teacher else None
            started, done = time.monotonic(), 0
            self.say("induce", f"{arm.induction}: {missing} of {len(units)} units to do")
            for counts in induce(replace(task, pool=pool), units, self.cluster.induction):
                done += counts["units"]
                left = (time.monotonic() - started) / max(done, 1) * (missing - done)
                self.say("induce", f"{arm.induction}: {done}/{missing} units, ~{clock(left)} left in this stage")
            evidence.add_induction_seconds(self.run, arm, time.monotonic() - started)
        told = evidence.trace_set(self.run, arm)
        dropped = ", ".join(f"{count} {reason}" for reason, count in told["dropped"].items())
        self.say("induce", f"{arm.induction}: {told['rows']} traces" + (f", dropped: {dropped}" if dropped else ""))

    def baselines(self, splits: tuple[str, ...] = ("tune", "held_out")) -> None:
        """Verify the bare model, the document in the prompt, whole and cut, and the untrained prefix."""
        subjects = [(name, size, subject) for name, size, subject in evidence.prompt_baselines(self.plan)]
        subjects += [("text_prefill", size, self._prefill(size)) for size in evidence.sizes(self.plan)]
        for name, size, subject in subjects:
            for split in splits:
                self._verify(f"{name} {size or ''}".strip(), subject, split)

    def _verify(self, label: str, subject: Subject, split: str) -> None:
        if self.verifier.outcomes.get(subject.name, split) is None:
            score = score_of(self.verifier.verify(subject, split, self.pool.generate))
            self.say("verify", f"{label}, {split}: {score['passed']}/{score['total']} ({score['score']:.0%})")

    def _prefill(self, num_tokens: int) -> Subject:
        digest = evidence.prefill_digest(self.plan, self.run, num_tokens)
        if digest is None:
            setup = self._group_setup()
            digest = ray.get(
                ray.remote(publish_prefill)
                .options(num_cpus=self.cluster.training.cpus, num_gpus=self.cluster.training.gpus)
                .remote(setup, num_tokens)
            )
            evidence.set_prefill_digest(self.plan, self.run, num_tokens, digest)
        return prefix_subject(self.run, digest, num_tokens, self.cache)

    def sweep(self) -> None:
        """Train and verify every arm that has not ended, under ASHA. Raises: LPCError when an arm failed."""
        arms, protocol = self.plan.arms, self.plan.protocol
        open_arms = [arm for arm in arms if ArmStore(self.run, arm.id).end(protocol) is None]
        if not open_arms:
            self.say("sweep", f"all {len(arms)} arms have ended")
            return
        pool = self.pool
        desk, group = start_training_group(self._group_setup(), self.name)
        last_step = self.recipe.training.steps
        setup = TrialSetup(self.run, self.verifier, pool, desk, last_step, self.cache)
        watcher = SweepWatcher(setup, self._show_result, self._show_end)
        self._pace = Pace(open_arms, last_step)
        cases = sum(case.split == "tune" for case in self.plan.cases)
        errors = sweep(arms, setup, self.recipe.stopping, cases, watcher, self.name)
        ray.get(desk.close.remote())
        if errors:
            ray.cancel(group, force=True)
            raise LPCError(f"{len(errors)} of {len(arms)} arms failed; the first: {errors[0]}")
        ray.get(group)

    def _show_result(self, arm: Arm, result: dict) -> None:
        self.tracker.log_step(arm, result)
        number = [known.id for known in self.plan.arms].index(arm.id) + 1
        loss = "" if result["loss"] is None else f"loss {result['loss']:.3f}, "
        left = self._pace.left(arm, result["step"])
        self.say(
            "sweep",
            f"arm {number}/{len(self.plan.arms)} {arm.name} step {result['step']}/{self.recipe.training.steps}: {loss}"
            f"verified {result['passed']}/{result['total']}" + (f", ~{clock(left)} left" if left is not None else ""),
        )

    def _show_end(self, arm: Arm, end: dict) -> None:
        self._pace.ended(arm)
        best = best_step(evidence.arm_record(self.plan, self.run, arm).steps)
        folder = str(fetch(self.run / "artifacts", best.digest, self.cache)) if best else None
        self.tracker.end_arm(arm, end["status"], folder)
        self.say("sweep", f"{arm.name} {end['status']} at step {end['step']}")

    def held_out(self) -> None:
        """Verify each arm's best step on the held-out cases, which nothing before this reads."""
        for arm in self.plan.arms:
            best = best_step(evidence.arm_record(self.plan, self.run, arm).steps)
            if best is not None:
                subject = prefix_subject(self.run, best.digest, arm.num_tokens, self.cache)
                self._verify(f"{arm.name} step {best.step}", subject, "held_out")

    def report(self) -> None:
        """Write the report from what the store holds, log it, and print the table and where it lies."""
        arms = [evidence.arm_record(self.plan, self.run, arm) for arm in self.plan.arms]
        baselines = evidence.baseline_records(self.plan, self.run)
        title = f"lpc_ray: {self.plan.config.name}"
        held_out = [case for case in self.plan.cases if case.split == "held_out"]
        facts = evidence.facts(self.plan, lambda: datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"))
        subject = ReportSubject(self.plan.config.name, ", ".join(document.name for document in self.plan.documents))
        thresholds = self.plan.config.report.thresholds
        rows = write_report(self.run, title, facts, arms, baselines, held_out, subject, thresholds)
        figures = {f"held_out.{row.name}": row.score for row in rows if row.score is not None}
        self.tracker.end({name: self.run.read_bytes(name) for name in REPORT_FILES}, figures)
        print(f"\n{printed_table(rows)}\n", flush=True)
        self.say("report", f"{self.run.path('report.html')}  (mlflow ui --backend-store-uri {self.tracker.uri})")

    def _group_setup(self) -> GroupSetup:
        return GroupSetup(
            recipe=self.recipe,
            run=self.run,
            material=self.plan.material,
            resources=self.cluster.training,
            model=self.model,
        )


def publish_prefill(setup: GroupSetup, num_tokens: int) -> str:
    """The text prefill control: an untrained prefix of the document's first tokens. Returns its digest."""
    import torch

    from lpc_ray.identity import model_identity
    from lpc_ray.initializers import first_k

    torch.set_num_threads(setup.resources.threads)
    revision = setup.recipe.model.revision
    start = first_k(load_backbone(setup.model, revision, setup.recipe.model.dtype), setup.material, num_tokens)
    provenance = {**start.record, "optimizer_steps": 0}
    manifest = publish(
        setup.run / "artifacts",
        start.keys,
        start.values,
        model_identity(setup.model, revision),
        setup.recipe.prefix.frozen_tokens,
        provenance=provenance,
    )
    return manifest.digest


class Pace:
    """How long the sweep has yet to run, from the steps it has taken so far."""

    def __init__(self, arms: list[Arm], last_step: int):
        self._last_step = last_step
        self._left = {arm.id: last_step for arm in arms}
        self._total = last_step * len(arms)
        self._skipped = 0
        self._started = time.monotonic()

    def left(self, arm: Arm, step: int) -> float | None:
        """Seconds, if every open arm runs to its last step; None before there is anything to go by."""
        if arm.id in self._left:
            self._left[arm.id] = self._last_step - step
        remaining = sum(self._left.values())
        taken = self._total - remaining - self._skipped
        return (time.monotonic() - self._started) / taken * remaining if taken > 0 else None

    def ended(self, arm: Arm) -> None:
        self._skipped += self._left.pop(arm.id, 0)
