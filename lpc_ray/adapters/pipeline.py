"""The arrow on Ray: induction → baselines → sweep → held-out verification → report, each stage resumable.

A stage does what the run's store does not hold yet; a run that is complete needs neither engine nor trainer.
"""

import datetime
import logging
import os
import time
from dataclasses import replace
from functools import cached_property
from typing import Any

import ray

from lpc_ray import evidence
from lpc_ray.adapters.engine_pool import EnginePool, start_engine_pool
from lpc_ray.adapters.live_view import SweepGauges
from lpc_ray.adapters.ray_data import InductionTask, induce
from lpc_ray.adapters.ray_train import GroupSetup, load_backbone, start_training_group
from lpc_ray.adapters.ray_tune import SweepWatcher, TrialSetup, prefix_subject, score_of, sweep
from lpc_ray.adapters.tracking import Tracker
from lpc_ray.analysis.ledger import best_step
from lpc_ray.analysis.report import REPORT_FILES, ReportSubject, printed_table, write_report
from lpc_ray.arm_store import ArmStore
from lpc_ray.artifact import fetch, publish
from lpc_ray.config import JobConfig
from lpc_ray.console import Console, Pace, clock
from lpc_ray.embedded_model import model_cache, resolve_model
from lpc_ray.errors import LPCError
from lpc_ray.matrix import Arm
from lpc_ray.plan import Plan, make_plan
from lpc_ray.records import Message
from lpc_ray.scale_run import TaskResults
from lpc_ray.storage import Store
from lpc_ray.traces import TraceStore
from lpc_ray.verification.off_source import SPLIT
from lpc_ray.verification.off_source import damage as measured
from lpc_ray.verification.outcomes import Subject

SECONDS_BETWEEN_LINES = 2


def connect(plan: Plan) -> None:
    """Join the configured cluster, the one that submitted this job, or start a local Ray."""
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")
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
        for arm in sorted(self.plan.trace_sets(), key=lambda arm: families[arm.induction].needs_teacher()):
            units = self.plan.units(arm.induction, arm.induction_seed)
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
            self._induce(arm, task, units, needs_teacher=families[arm.induction].needs_teacher())

    def _induce(self, arm: Arm, task: InductionTask, units: list, needs_teacher: bool) -> None:
        missing = len({unit.id for unit in units} - TraceStore(task.store).units())
        if missing:
            pool = self.pool if needs_teacher else None
            started, done, said = time.monotonic(), 0, 0.0
            self.say("induce", f"{arm.induction}: {missing} of {len(units)} units to do")
            for counts in induce(replace(task, pool=pool), units, self.cluster.induction):
                done += counts["units"]
                spent = time.monotonic() - started
                if spent - said >= SECONDS_BETWEEN_LINES and done < missing:
                    left, said = spent / max(done, 1) * (missing - done), spent
                    self.say("induce", f"{arm.induction}: {done}/{missing} units, ~{clock(left)} left in this stage")
            evidence.add_induction_seconds(self.run, arm, time.monotonic() - started)
        told = evidence.trace_set(self.run, arm)
        dropped = ", ".join(f"{count} {reason}" for reason, count in told["dropped"].items())
        self.say("induce", f"{arm.induction}: {told['rows']} traces" + (f", dropped: {dropped}" if dropped else ""))

    def baselines(self, splits: tuple[str, ...] = ("tune", "held_out")) -> None:
        """Verify the bare model, the document in the prompt, whole and cut, and the untrained prefix."""
        for line in self.plan.benchmark.readiness():
            self.say("verify", line)
        subjects = [(name, size, subject) for name, size, subject in evidence.prompt_baselines(self.plan)]
        subjects += [("text_prefill", size, self._prefill(size)) for size in evidence.sizes(self.plan)]
        for name, size, subject in subjects:
            for split in splits:
                self._verify(f"{name} {size or ''}".strip(), subject, split)

    def _verify(self, label: str, subject: Subject, split: str) -> None:
        has_cases = any(case.split == split for case in self.plan.cases)
        if has_cases and self.verifier.outcomes.get(subject.name, split) is None:
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
        left = self._pace.left(arm.id, result["step"], result["training_seconds"], time.monotonic())
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
        """Verify each arm's best step on the held-out cases, which nothing before this reads."""
        for arm in self.plan.arms:
            best = best_step(evidence.arm_record(self.plan, self.run, arm).steps)
            if best is not None:
                subject = prefix_subject(self.run, best.digest, arm.num_tokens, self.cache)
                self._verify(f"{arm.name} step {best.step}", subject, "held_out")

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
        """Write the report from what the store holds, log it, and print the table and where it lies."""
        arms = [evidence.arm_record(self.plan, self.run, arm) for arm in self.plan.arms]
        baselines = evidence.baseline_records(self.plan, self.run)
        title = f"lpc_ray: {self.plan.config.name}"
        held_out = [case for case in self.plan.cases if case.split == "held_out"]
        facts = evidence.facts(self.plan, lambda: datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"))
        task = ", ".join(document.name for document in self.plan.documents)
        subject = ReportSubject(self.plan.config.name, task, len(self.plan.material))
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


def measure_drift(setup: GroupSetup, folder: str, texts: list[tuple[list[Message], str]]) -> tuple[float, int]:
    """KL drift of the LPC in `folder` on conversations and the bare model's replies to them (re-tokenised)."""
    import torch
    from transformers import AutoTokenizer

    from lpc_ray.artifact import load_prefix
    from lpc_ray.identity import model_identity
    from lpc_ray.verification.drift import kl_drift, text_row

    torch.set_num_threads(setup.resources.threads)
    model = setup.recipe.model
    _, keys, values = load_prefix(folder, model_identity(setup.model, model.revision))
    tokenizer = AutoTokenizer.from_pretrained(setup.model, revision=model.revision)
    rows = []
    for messages, reply in texts:
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        rows.append(text_row(ids, tokenizer.encode(reply, add_special_tokens=False)))
    return kl_drift(load_backbone(setup.model, model.revision, model.dtype), keys, values, rows)
