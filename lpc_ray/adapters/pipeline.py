"""The arrow on Ray: induction → baselines → sweep → held-out verification → report, each stage resumable.

A stage does what the run's store does not hold yet; a run that is complete needs neither engine nor trainer.
"""

import datetime
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cached_property
from typing import Any

import ray

from lpc_ray import evidence
from lpc_ray.adapters.engine_pool import EnginePool, start_engine_pool
from lpc_ray.adapters.live_view import SweepGauges
from lpc_ray.adapters.prefix_tasks import measure_drift, publish_untrained
from lpc_ray.adapters.ray_data import BatchDone, TraceWork, induce
from lpc_ray.adapters.ray_train import GroupSetup, start_training_group
from lpc_ray.adapters.ray_tune import SweepWatcher, TrialSetup, prefix_subject, score_of, sweep
from lpc_ray.adapters.tracking import Tracker, check_tracking
from lpc_ray.analysis.induction_quality import printed as printed_quality
from lpc_ray.analysis.ledger import best_step
from lpc_ray.analysis.report import REPORT_FILES, ReportSubject, printed_table, write_report
from lpc_ray.analysis.row import mean_figures
from lpc_ray.arm_store import ArmStore
from lpc_ray.artifact import fetch
from lpc_ray.config import JobConfig
from lpc_ray.console import Console, Pace, clock
from lpc_ray.embedded_model import prefix_cache, resolve_model
from lpc_ray.errors import ConfigError, DataError, LPCError
from lpc_ray.handles import set_handle
from lpc_ray.identity import model_identity
from lpc_ray.induction.base import Unit
from lpc_ray.library import adopt
from lpc_ray.matrix import Arm, TraceSet
from lpc_ray.plan import Plan, make_plan
from lpc_ray.recipe import InitializerName
from lpc_ray.records import Outcome
from lpc_ray.scale_run import TaskResults
from lpc_ray.storage import Store, open_store
from lpc_ray.traces import TraceStore
from lpc_ray.verification.off_source import SPLIT
from lpc_ray.verification.off_source import damage as measured
from lpc_ray.verification.outcomes import Subject

SECONDS_BETWEEN_LINES, SECONDS_OF_SILENCE = 2, 20


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
        has = ray.cluster_resources()["CPU"]
        for name, cpus in (("engine", cluster.engine.cpus), ("training", cluster.training.cpus)):
            if cpus > has:
                raise ConfigError(f"cluster.{name}.cpus: got {cpus:g}, wanted at most the {has:g} of this machine")
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def run_stages(plan: Plan, run: Store, *stages: str) -> None:
    """Run the named methods of `Pipeline` in turn; only a report alone needs no Ray."""
    console = Console()
    if stages == ("report",) and not run.names():
        raise DataError(f"{run}: got an empty or missing folder, wanted a run")
    pipeline = Pipeline(plan, run, console)
    if stages != ("report",):
        connect(plan)
    with console.kept_alive(pipeline.engine_news, SECONDS_OF_SILENCE):
        if "sweep" in stages:
            pipeline.start_ahead()
        for stage in stages:
            getattr(pipeline, stage)()


def carry_out(job: JobConfig, run: Store, stages: tuple[str, ...], unsandboxed: bool) -> TaskResults:
    """One task of several, on a Ray of its own: the next task's engine finds the machine free."""
    plan = make_plan(job, unsandboxed)
    try:
        run_stages(plan, run, *stages)
    finally:
        ray.shutdown()
    outcomes = evidence.verifier(plan, run).outcomes
    return TaskResults(
        source_tokens=len(plan.material),
        arms=[evidence.arm_record(plan, run, arm) for arm in plan.arms],
        baselines=evidence.baseline_records(plan, run),
        tune=lambda digest: outcomes.get(digest, "tune") or (),
    )


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
        self.cache = prefix_cache()
        self._told_answered = 0
        self._untrained: dict[tuple[InitializerName, int], ray.ObjectRef] = {}
        check_tracking(plan.config, run)
        run.check_writable()

    @cached_property
    def tracker(self) -> Tracker:
        return Tracker(self.plan.config, self.plan.fingerprint, self.run)

    def start_ahead(self) -> None:
        """Where arms are open, begin to load what they need while other stages work: start-up is mostly imports."""
        if self._open_arms():
            _ = self._starting_pool, self._training_group
            for initializer, size in evidence.untrained(self.plan):
                self._publish_untrained(initializer, size)
            _ = self.tracker

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

    def engine_news(self) -> tuple[str, str] | None:
        """Stage and text of how far the engine has come; None before it is started and while it has nothing to do."""
        started = self.__dict__.get("_starting_pool")
        if started is None or not ray.is_initialized():
            return None
        answered = started[0].answered(patience=2)
        if answered is None:
            return None if self._told_answered else ("engine", "still loading")
        if answered == self._told_answered:
            return None
        news = f"{answered} replies so far, {answered - self._told_answered} since the last count"
        self._told_answered = answered
        return "engine", news

    @cached_property
    def _training_group(self) -> tuple[Any, Any]:
        workers, stage = self.cluster.training.workers, self.cluster.training.zero_stage
        self.say("train", f"starting {workers} training worker(s), DeepSpeed ZeRO-{stage}")
        return start_training_group(self._group_setup(), self.name)

    def _open_arms(self) -> list[Arm]:
        return [arm for arm in self.plan.arms if ArmStore(self.run, arm.id).end(self.plan.protocol) is None]

    def induce(self) -> None:
        """Make the missing traces of every trace set; those that need no teacher come first, while it starts.

        Raises: DataError for a teacher's trace set that costs fewer tokens than training is to have, VerificationError when
        this machine could not verify what comes of them.
        """
        self.plan.benchmark.check_runnable()
        families = self.plan.families
        sets = sorted(self.plan.trace_sets(), key=lambda one: families[one.family].needs_teacher())
        work = [(one, units) for one in sets if (units := self._missing_units(one))]
        for one, units in work:
            self.say("induce", f"{one.family}: {len(units)} units to do")
        if work:
            self._induce(work)
        for one in sets:
            evidence.judge_induction(self.plan, self.run, one)
            told = TraceStore(self.run / f"traces/{one.id}").summary()
            dropped = ", ".join(f"{count} {reason}" for reason, count in told["dropped"].items())
            self.say("induce", f"{one.family}: {told['rows']} traces" + (f", dropped: {dropped}" if dropped else ""))
            self.plan.check_teacher_tokens(one, told["teacher_tokens"])

    def _induce(self, work: list[tuple[TraceSet, list[Unit]]]) -> None:
        taught = any(self.plan.families[one.family].needs_teacher() for one, _ in work)
        pool = self._starting_pool[0] if taught else None
        named = {one.id: one for one, _ in work}
        left = {one.id: len(units) for one, units in work}
        started, said, busy_until = time.monotonic(), 0.0, dict.fromkeys(named, 0.0)
        total = sum(left.values())
        taught_units = {one.id: len(units) for one, units in work if self.plan.families[one.family].needs_teacher()}
        tasks = [
            TraceWork(one.id, self.plan.induction_task(one), self.run / f"traces/{one.id}", units)
            for one, units in work
        ]
        for batch in self._or_engine_failure(induce(tasks, pool, self.cluster.induction), taught):
            left[batch.traces] -= batch.units
            # Batches overlap in time; a trace set's cost is the time in which at least one of its batches was worked on,
            # and waiting for the engine to load is no part of it.
            ready = max(ray.get(self._starting_pool[2])) if batch.traces in taught_units else 0.0
            seconds = max(0.0, batch.ended - max(batch.started, busy_until[batch.traces], ready))
            busy_until[batch.traces] = max(busy_until[batch.traces], batch.ended)
            evidence.add_induction_seconds(self.run, named[batch.traces], seconds)
            spent, todo = time.monotonic() - started, sum(left.values())
            if todo and spent - said >= SECONDS_BETWEEN_LINES:
                said = spent
                now = ", ".join(f"{named[key].family} {count}" for key, count in left.items() if count)
                # Units without a teacher cost next to nothing and tell no time.
                ahead = sum(left[key] for key in taught_units)
                done = sum(taught_units.values()) - ahead
                rest = f", ~{clock(spent / done * ahead)} left in this stage" if done else ""
                self.say("induce", f"{total - todo}/{total} units{rest} (to do: {now})")

    def _or_engine_failure(self, batches: Iterator[BatchDone], taught: bool) -> Iterator[BatchDone]:
        """The batches; when they fail because no engine could start, its own error is the one to raise."""
        try:
            yield from batches
        except ray.exceptions.RayError:
            if taught:
                ray.get(self._starting_pool[2])
            raise

    def _missing_units(self, one: TraceSet) -> list[Unit]:
        done = TraceStore(self.run / f"traces/{one.id}").units()
        return [unit for unit in self.plan.units(one.family, one.induction_seed) if unit.id not in done]

    def show_induction(self) -> None:
        """Print the quality of every trace set."""
        for record in evidence.induction_reports(self.plan, self.run):
            print(printed_quality(record["family"], record["quality"]), flush=True)

    def baselines(self, splits: tuple[str, ...] = ("tune", "held_out")) -> None:
        """Verify the bare model, the document in the prompt, untrained prefixes, and the LPCs the recipe names."""
        for line in self.plan.benchmark.readiness():
            self.say("verify", line)
        subjects = [(name, size, subject) for name, size, subject in evidence.prompt_baselines(self.plan)]
        subjects += [
            (evidence.untrained_name(initializer), size, self._untrained_prefix(initializer, size))
            for initializer, size in evidence.untrained(self.plan)
        ]
        subjects += [(handle, 0, self._adopted(handle)) for handle in evidence.library_handles(self.plan)]
        self._verify(
            [(f"{name} {size or ''}".strip(), subject, split) for name, size, subject in subjects for split in splits]
        )

    def _verify(self, wanted: list[tuple[str, Subject, str]]) -> None:
        """Verify (label, subject, split) where no outcome is stored, and tell each as it is known.

        Held-out cases tell what a request costs, so their batches have the engine for themselves; the others share it.
        """
        splits = {case.split for case in self.plan.cases}
        outcomes = self.verifier.outcomes
        wanted = [one for one in wanted if one[2] in splits and outcomes.get(one[1].name, one[2]) is None]
        wanted = list({(subject.name, split): (label, subject, split) for label, subject, split in wanted}.values())
        if not wanted:
            return
        self.say("verify", f"{len(wanted)} scores to find, {self.pool.replicas} engine(s)")
        timed = [one for one in wanted if one[2] == "held_out"]
        for together in ([one for one in wanted if one not in timed], *([one] for one in timed)):
            with ThreadPoolExecutor(max_workers=max(1, len(together))) as threads:
                asked = {
                    threads.submit(self.verifier.verify, subject, split, self.pool.generate): f"{label}, {split}"
                    for label, subject, split in together
                }
                for done in as_completed(asked):
                    self._tell_score(asked[done], done.result())

    def _tell_score(self, label: str, outcomes: tuple[Outcome, ...]) -> None:
        score = score_of(outcomes)
        beside = "".join(f", {name} {value:.2f}" for name, value in mean_figures(outcomes).items())
        self.say("verify", f"{label}: {score['passed']}/{score['total']} ({score['score']:.0%}){beside}")

    def _untrained_prefix(self, initializer: InitializerName, num_tokens: int) -> Subject:
        key = evidence.untrained_key(self.plan, initializer, num_tokens)
        digest = evidence.baseline_digest(self.run, key)
        if digest is None:
            digest = ray.get(self._publish_untrained(initializer, num_tokens))
            evidence.set_baseline_digest(self.run, key, digest)
        return prefix_subject(self.run, digest, num_tokens, self.cache)

    def _publish_untrained(self, initializer: InitializerName, num_tokens: int) -> ray.ObjectRef:
        """The digest of an untrained prefix, when it is there; asked for once."""
        key = (initializer, num_tokens)
        if key not in self._untrained:
            task = ray.remote(publish_untrained).options(
                num_cpus=self.cluster.training.cpus, num_gpus=self.cluster.training.gpus
            )
            self._untrained[key] = task.remote(self._group_setup(), initializer, num_tokens)
        return self._untrained[key]

    def _adopted(self, handle: str) -> Subject:
        """An LPC of the library that the recipe names, copied into the run."""
        prefixes = self.recipe.prefixes
        assert prefixes is not None
        identity = model_identity(self.model, self.recipe.model.revision)
        manifest = adopt(open_store(prefixes.store), handle, self.run, identity, self.cache)
        evidence.set_baseline_digest(self.run, evidence.library_key(self.plan, handle), manifest.digest)
        return prefix_subject(self.run, manifest.digest, manifest.num_tokens, self.cache)

    def sweep(self) -> None:
        """Train and verify every arm that has not ended, under ASHA. Raises: LPCError when an arm failed."""
        arms, open_arms = self.plan.arms, self._open_arms()
        if not open_arms:
            self.say("sweep", f"all {len(arms)} arms have ended")
            return
        pool = self.pool
        desk, group = self._training_group
        last_step = self.recipe.training.steps
        setup = TrialSetup(
            arms={arm.name: arm for arm in arms},
            run=self.run,
            verifier=self.verifier,
            pool=pool,
            desk=desk,
            first_decision=min(self.recipe.stopping.grace_steps, last_step),
            last_step=last_step,
            cache=self.cache,
        )
        watcher = SweepWatcher(setup, self._show_result, self._show_end)
        self._pace = Pace([arm.id for arm in open_arms], last_step)
        self._gauges = SweepGauges(self.plan.config.name, [arm.name for arm in arms])
        cases = sum(case.split == "tune" for case in self.plan.cases)
        errors = sweep(arms, setup, self.recipe.stopping, cases, watcher, self.name)
        ray.get(desk.close.remote())
        if errors:
            ray.cancel(group, force=True)
            raise LPCError(f"{len(errors)} of {len(arms)} arms failed; the first: {errors[0]}")
        ray.get(group)

    def _show_result(self, arm: Arm, result: dict) -> None:
        self.tracker.log_step(arm, result)
        self._gauges.result(arm.name, result)
        number = [known.id for known in self.plan.arms].index(arm.id) + 1
        loss = "" if result["loss"] is None else f"loss {result['loss']:.3f}, "
        left = self._pace.left(arm.id, result["trained_step"], result["is_replayed"], time.monotonic())
        self.say(
            "sweep",
            f"arm {number}/{len(self.plan.arms)} {arm.name} step {result['step']}/{self.recipe.training.steps}: {loss}"
            f"verified {result['passed']}/{result['total']}" + (f", ~{clock(left)} left" if left is not None else ""),
        )

    def _show_end(self, arm: Arm, end: dict) -> None:
        self._pace.ended(arm.id)
        self._gauges.ended(arm.name, end["status"])
        best = best_step(evidence.arm_record(self.plan, self.run, arm).steps)
        folder = str(fetch(self.run / "artifacts", best.digest, self.cache)) if best else None
        self.tracker.end_arm(arm, end["status"], folder)
        self.say("sweep", f"{arm.name} {end['status']} at step {end['step']}")

    def held_out(self) -> None:
        """Name each arm's best step by a handle, and verify it on the held-out cases, which nothing before this reads."""
        wanted = []
        for arm in self.plan.arms:
            best = best_step(evidence.arm_record(self.plan, self.run, arm).steps)
            if best is not None:
                set_handle(self.run, arm.name, best.digest)
                subject = prefix_subject(self.run, best.digest, arm.num_tokens, self.cache)
                wanted.append((f"{arm.name} step {best.step}", subject, "held_out"))
        self._verify(wanted)

    def gate(self) -> None:
        """Measure what each arm's best step does off its source, put it to the gate, and write both into its artifact."""
        if self.recipe.off_source is None and self.recipe.gate is None:
            return
        for arm in self.plan.arms:
            best = best_step(evidence.arm_record(self.plan, self.run, arm).steps)
            if best is not None:
                self._gate(arm, best.digest)

    def _gate(self, arm: Arm, digest: str) -> None:
        damage = evidence.damage_of(self.plan, self.run, digest)
        if damage is None and self.recipe.off_source is not None:
            benchmark = self.plan.off_source
            verifier = evidence.off_source_verifier(self.plan, self.run)
            bare = verifier.verify(Subject("no_context"), SPLIT, self.pool.generate)
            subject = prefix_subject(self.run, digest, arm.num_tokens, self.cache)
            told = verifier.verify(subject, SPLIT, self.pool.generate)
            asks = [verifier.ask(Subject("no_context"), case) for case in benchmark.cases]
            texts = [(list(ask.messages), outcome.reply) for ask, outcome in zip(asks, bare, strict=True)]
            drift, tokens = ray.get(
                ray.remote(measure_drift)
                .options(num_cpus=self.cluster.training.cpus, num_gpus=self.cluster.training.gpus)
                .remote(self._group_setup(), subject.prefix.folder, texts)
            )
            damage = evidence.set_damage(self.plan, self.run, digest, measured(benchmark, bare, told, drift, tokens))
            self.say("damage", f"{arm.name}: {damage}")
        verdict = evidence.put_to_gate(self.plan, self.run, arm, digest, damage)
        if verdict is not None:
            self.say("gate", f"{arm.name}: " + ("passed" if verdict.passed else "; ".join(verdict.reasons)))

    def report(self) -> None:
        """Write the report from what the store holds, log it, and print the table and where it lies.

        Raises: DataError when the store holds no figure of this recipe's arms, or lacks scores it should hold.
        """
        arms = [evidence.arm_record(self.plan, self.run, arm) for arm in self.plan.arms]
        evidence.check_reportable(self.plan, self.run, arms)
        baselines = evidence.baseline_records(self.plan, self.run)
        _ = self.tracker
        title = f"lpc_ray: {self.plan.config.name}"
        held_out = [case for case in self.plan.cases if case.split == "held_out"]
        facts = evidence.facts(self.plan, lambda: datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"))
        task = ", ".join(document.name for document in self.plan.documents)
        subject = ReportSubject(self.plan.config.name, task, len(self.plan.material))
        thresholds = self.plan.config.report.thresholds
        induction = evidence.induction_reports(self.plan, self.run)
        rows = write_report(self.run, title, facts, arms, baselines, held_out, subject, thresholds, induction)
        figures = {f"held_out.{row.name}": row.score for row in rows if row.score is not None}
        self.tracker.end({name: self.run.read_bytes(name) for name in REPORT_FILES}, figures)
        print(f"\n{printed_table(rows)}\n", flush=True)
        self.say("report", f"{self.run.path('report.html')}  (mlflow ui --backend-store-uri {self.tracker.uri})")

    def _group_setup(self) -> GroupSetup:
        return GroupSetup(
            recipe=self.recipe,
            run=self.run,
            starts=self.plan.starts,
            resources=self.cluster.training,
            model=self.model,
        )
