"""The arrow on Ray: induction → baselines → sweep → held-out verification → report, each stage resumable.

A stage does what the run's store does not hold yet; a run that is complete needs neither engine nor trainer.
"""

import datetime
import logging
import os
import time
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import ray

from lpc_ray import evidence
from lpc_ray.adapters.engine_pool import EnginePool, start_engine_pool
from lpc_ray.adapters.ray_data import BatchDone, InductionTask, induce
from lpc_ray.adapters.ray_train import GroupSetup, load_backbone, start_training_group
from lpc_ray.adapters.ray_tune import SweepWatcher, TrialSetup, prefix_subject, score_of, sweep
from lpc_ray.adapters.tracking import Tracker
from lpc_ray.analysis.ledger import best_step
from lpc_ray.analysis.report import printed_table, write_report
from lpc_ray.arm_store import ArmStore
from lpc_ray.artifact import fetch, publish
from lpc_ray.console import Console, Pace, clock
from lpc_ray.embedded_model import model_cache, resolve_model
from lpc_ray.errors import LPCError
from lpc_ray.induction.base import Unit
from lpc_ray.matrix import Arm
from lpc_ray.plan import Plan
from lpc_ray.storage import Store
from lpc_ray.traces import TraceStore
from lpc_ray.verification.outcomes import Subject

SECONDS_BETWEEN_LINES = 2
REPORT_FILES = ("report.html", "report.json", "pareto.csv", "convergence.csv")


def connect(plan: Plan) -> None:
    """Join the configured cluster, the one that submitted this job, or start a local Ray."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # Ray Data's actor pool alarms a reader at every start
    cluster = plan.config.cluster
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address:
        ray.init(address=address, **quiet)
    else:
        ray.init(address="local", num_cpus=cluster.local_cpus, include_dashboard=True, **quiet)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def run_stages(plan: Plan, run: Store, *stages: str) -> None:
    """Run the named methods of `Pipeline` in turn; only a report alone needs no Ray."""
    console = Console()
    if stages != ("report",):
        connect(plan)
    pipeline = Pipeline(plan, run, console)
    if "sweep" in stages:
        pipeline.start_ahead()
    for stage in stages:
        getattr(pipeline, stage)()


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
        self._prefills: dict[int, ray.ObjectRef] = {}
        run.check_writable()
        self.tracker = Tracker(plan.config, plan.fingerprint, run)

    def start_ahead(self) -> None:
        """Where arms are open, begin to load what they need while other stages work: start-up is mostly imports."""
        if self._open_arms():
            _ = self._starting_pool, self._training_group
            for size in evidence.sizes(self.plan):
                self._publish_prefill(size)

    @cached_property
    def pool(self) -> EnginePool:
        """The engine pool, started on first use and waited for."""
        pool, _, ready = self._starting_pool
        ray.get(ready)
        self.say("engine", "ready")
        return pool

    @cached_property
    def _starting_pool(self) -> tuple[EnginePool, list, list]:
        self.say("engine", f"starting {self.cluster.engine.replicas} vLLM engine(s) with {self.recipe.model.id}")
        return start_engine_pool(self.name, self.recipe.model, self.cluster.engine)

    @cached_property
    def _training_group(self) -> tuple[Any, Any]:
        workers, stage = self.cluster.training.workers, self.cluster.training.zero_stage
        self.say("train", f"starting {workers} training worker(s), DeepSpeed ZeRO-{stage}")
        return start_training_group(self._group_setup(), self.name)

    def _open_arms(self) -> list[Arm]:
        return [arm for arm in self.plan.arms if ArmStore(self.run, arm.id).end(self.plan.protocol) is None]

    def induce(self) -> None:
        """Make the missing traces of every trace set; those that need no teacher come first, while it starts."""
        families = self.plan.families
        sets = sorted(self.plan.trace_sets(), key=lambda arm: families[arm.induction].needs_teacher())
        work = [(arm, self._induction_task(arm), self._missing_units(arm)) for arm in sets]
        work = [(arm, task, units) for arm, task, units in work if units]
        for arm, _, units in work:
            self.say("induce", f"{arm.induction}: {len(units)} units to do")
        if work:
            self._induce(work)
        for arm in sets:
            told = evidence.trace_set(self.run, arm)
            dropped = ", ".join(f"{count} {reason}" for reason, count in told["dropped"].items())
            self.say("induce", f"{arm.induction}: {told['rows']} traces" + (f", dropped: {dropped}" if dropped else ""))

    def _induce(self, work: list[tuple[Arm, InductionTask, list[Unit]]]) -> None:
        taught = any(self.plan.families[arm.induction].needs_teacher() for arm, _, _ in work)
        pool = self._starting_pool[0] if taught else None
        named = {arm.traces: arm for arm, _, _ in work}
        left = {arm.traces: len(units) for arm, _, units in work}
        started, said, busy_until = time.monotonic(), 0.0, dict.fromkeys(named, 0.0)
        total = sum(left.values())
        batches = induce([(arm.traces, task, units) for arm, task, units in work], pool, self.cluster.induction)
        for batch in self._or_engine_failure(batches, taught):
            left[batch.traces] -= batch.units
            # Batches overlap in time; a trace set's cost is the time in which at least one of its batches was worked on.
            seconds = max(0.0, batch.ended - max(batch.started, busy_until[batch.traces]))
            busy_until[batch.traces] = max(busy_until[batch.traces], batch.ended)
            evidence.add_induction_seconds(self.run, named[batch.traces], seconds)
            spent, todo = time.monotonic() - started, sum(left.values())
            if todo and spent - said >= SECONDS_BETWEEN_LINES:
                said = spent
                now = ", ".join(f"{named[key].induction} {count}" for key, count in left.items() if count)
                rest = clock(spent / max(total - todo, 1) * todo)
                self.say("induce", f"{total - todo}/{total} units, ~{rest} left in this stage (to do: {now})")

    def _or_engine_failure(self, batches: Iterator[BatchDone], taught: bool) -> Iterator[BatchDone]:
        """The batches; when they fail because no engine could start, its own error is the one to raise."""
        try:
            yield from batches
        except ray.exceptions.RayError:
            if taught:
                ray.get(self._starting_pool[2])
            raise

    def _missing_units(self, arm: Arm) -> list[Unit]:
        done = TraceStore(self.run / f"traces/{arm.traces}").units()
        return [unit for unit in self.plan.units(arm.induction, arm.induction_seed) if unit.id not in done]

    def _induction_task(self, arm: Arm) -> InductionTask:
        return InductionTask(
            family=arm.induction,
            settings=self.recipe.induction.families[arm.induction],
            seed=arm.induction_seed,
            model=self.recipe.model.id,
            revision=self.recipe.model.revision,
            system=self.recipe.prompt.system,
            max_trace_tokens=self.cluster.engine.max_model_len,
            store=self.run / f"traces/{arm.traces}",
        )

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
            digest = ray.get(self._publish_prefill(num_tokens))
            evidence.set_prefill_digest(self.plan, self.run, num_tokens, digest)
        return prefix_subject(self.run, digest, num_tokens, self.cache)

    def _publish_prefill(self, num_tokens: int) -> ray.ObjectRef:
        """The digest of the text prefill of that length, when it is there; asked for once."""
        if num_tokens not in self._prefills:
            task = ray.remote(publish_prefill).options(
                num_cpus=self.cluster.training.cpus, num_gpus=self.cluster.training.gpus
            )
            self._prefills[num_tokens] = task.remote(self._group_setup(), num_tokens)
        return self._prefills[num_tokens]

    def sweep(self) -> None:
        """Train and verify every arm that has not ended, under ASHA. Raises: LPCError when an arm failed."""
        arms, open_arms = self.plan.arms, self._open_arms()
        if not open_arms:
            self.say("sweep", f"all {len(arms)} arms have ended")
            return
        pool = self.pool
        desk, group = self._training_group
        last_step = self.recipe.training.steps
        setup = TrialSetup(self.run, self.verifier, pool, desk, last_step, self.cache)
        watcher = SweepWatcher(setup, self._show_result, self._show_end)
        self._pace = Pace([arm.id for arm in open_arms], self.recipe.training.checkpoints())
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
        left = self._pace.left(arm.id, result["step"], result["training_seconds"], time.monotonic())
        self.say(
            "sweep",
            f"arm {number}/{len(self.plan.arms)} {arm.name} step {result['step']}/{self.recipe.training.steps}: {loss}"
            f"verified {result['passed']}/{result['total']}" + (f", ~{clock(left)} left" if left is not None else ""),
        )

    def _show_end(self, arm: Arm, end: dict) -> None:
        self._pace.ended(arm.id)
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
        rows = write_report(self.run, title, facts, arms, baselines, held_out)
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
