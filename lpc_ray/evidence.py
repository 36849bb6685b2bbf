"""From a run's store to the records that the analysis shows: nothing here runs a model."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from lpc_ray.analysis.induction_quality import quality
from lpc_ray.analysis.ledger import ArmRecord, BaselineRecord, StepScore, best_step
from lpc_ray.analysis.observed import observed_requests
from lpc_ray.analysis.significance import SCORED
from lpc_ray.arm_store import ArmStore
from lpc_ray.artifact import stored_manifest, tell
from lpc_ray.errors import DataError
from lpc_ray.handles import ARTIFACTS
from lpc_ray.matrix import Arm, TraceSet
from lpc_ray.plan import Plan
from lpc_ray.recipe import GENERAL, InitializerName
from lpc_ray.records import Outcome, digest_of
from lpc_ray.storage import Store
from lpc_ray.traces import TraceStore
from lpc_ray.verification.base import protocol_of
from lpc_ray.verification.gate import GateVerdict, judge
from lpc_ray.verification.off_source import Damage
from lpc_ray.verification.outcomes import OutcomeStore, Subject, Verifier

INDUCTION_FILE = "induction.json"
TEMPLATE_TOKENS = 128


def verifier(plan: Plan, run: Store) -> Verifier:
    recipe = plan.config.recipe
    return Verifier(
        benchmark=plan.benchmark,
        outcomes=OutcomeStore(run, plan.protocol),
        system=recipe.prompt.system,
        max_tokens=recipe.verification.max_tokens,
    )


def off_source_verifier(plan: Plan, run: Store) -> Verifier:
    recipe = plan.config.recipe
    assert plan.off_source is not None and recipe.off_source is not None, "the recipe measures off-source damage"
    model, max_tokens = recipe.model.model_dump(mode="json"), recipe.off_source.max_tokens
    protocol = protocol_of(plan.off_source, recipe.prompt.system, max_tokens, model)
    return Verifier(plan.off_source, OutcomeStore(run, protocol), recipe.prompt.system, max_tokens)


def damage_of(plan: Plan, run: Store, digest: str) -> Damage | None:
    """The stored off-source figures of a prefix."""
    if plan.off_source is None or not run.exists(path := _damage_path(plan, run, digest)):
        return None
    return Damage(**run.read_json(path))


def set_damage(plan: Plan, run: Store, digest: str, damage: Damage) -> Damage:
    run.write_json(_damage_path(plan, run, digest), asdict(damage))
    return damage


def _damage_path(plan: Plan, run: Store, digest: str) -> str:
    return f"off_source/{off_source_verifier(plan, run).outcomes.protocol}/{digest}.json"


def put_to_gate(plan: Plan, run: Store, arm: Arm, digest: str, damage: Damage | None) -> GateVerdict | None:
    """Judge a prefix by both sides, and write score, damage and verdict into its manifest. None: the recipe has no gate."""
    outcomes = OutcomeStore(run, plan.protocol).get(digest, "held_out") or ()
    scored = [outcome for outcome in outcomes if outcome.verdict in SCORED]
    passed, total = sum(outcome.passed for outcome in scored), sum(outcome.total for outcome in scored)
    told: dict[str, Any] = {"arm": arm.name, "protocol": plan.protocol, "held_out": {"passed": passed, "total": total}}
    if damage is not None:
        told["off_source"] = asdict(damage)
    recipe = plan.config.recipe
    verdict = judge(recipe.gate, passed / total if total else None, damage) if recipe.gate else None
    if recipe.gate and verdict:
        told["gate"] = {**asdict(verdict), "thresholds": recipe.gate.model_dump(mode="json")}
    tell(run / "artifacts", digest, told)
    return verdict


def prompt_baselines(plan: Plan) -> list[tuple[str, int, Subject]]:
    """(name, tokens, subject) of the baselines that need no prefix: no context, whole document, document cut to P.

    A document that leaves no room in the engine's context for question and reply has no row.
    """
    found = [("no_context", 0, Subject("no_context"))]
    max_tokens = plan.config.recipe.verification.max_tokens
    taken = plan.longest_question + max_tokens + plan.benchmark.added_tokens(max_tokens) + TEMPLATE_TOKENS
    if len(plan.material) + taken <= plan.config.cluster.engine.max_model_len:
        found.append(("full_document", 0, _told(plan, "full_document", None)))
    for size in sizes(plan):
        found.append(("truncated", size, _told(plan, f"truncated-{size}", size)))
    return found


def sizes(plan: Plan) -> list[int]:
    return sorted({arm.num_tokens for arm in plan.arms})


def untrained(plan: Plan) -> list[tuple[InitializerName, int]]:
    """(initializer, tokens) of the untrained prefixes that are baselines: the text prefill, and what the recipe adds."""
    names = dict.fromkeys(("first_k", *plan.config.recipe.initializers.training_free))
    return [(name, size) for name in names for size in sizes(plan)]


def untrained_name(initializer: InitializerName) -> str:
    return "text_prefill" if initializer == "first_k" else initializer


def untrained_key(plan: Plan, initializer: InitializerName, num_tokens: int) -> str:
    """Under which name the run remembers an untrained prefix."""
    recipe = plan.config.recipe
    told = [recipe.model.model_dump(mode="json"), recipe.prefix.model_dump(mode="json"), plan.material, num_tokens]
    return f"{initializer}-{digest_of(*told, plan.starts.digests.get(initializer))}"


def library_key(plan: Plan, handle: str) -> str:
    """Under which name the run remembers the LPC that a handle of `recipe.prefixes` pointed to."""
    assert plan.config.recipe.prefixes is not None
    return f"handle-{digest_of(plan.config.recipe.prefixes.store, handle)}"


def _told(plan: Plan, name: str, num_tokens: int | None) -> Subject:
    text = plan.document_text
    if num_tokens is not None:
        text = plan.tokenizer.decode(plan.material[:num_tokens])
    return Subject(f"{name}-{digest_of(text)}", document=text)


def step_scores(run: Store, arm: Arm, outcomes: OutcomeStore) -> tuple[StepScore, ...]:
    """The verified checkpoints of an arm, ascending."""
    scores = []
    for checkpoint in ArmStore(run, arm.id).checkpoints():
        verified = outcomes.get(checkpoint.digest, "tune")
        if verified is not None:
            tune = [outcome for outcome in verified if outcome.verdict in SCORED]
            scores.append(
                StepScore(
                    step=checkpoint.step,
                    loss=checkpoint.loss,
                    passed=sum(outcome.passed for outcome in tune),
                    total=sum(outcome.total for outcome in tune),
                    training_seconds=checkpoint.training_seconds,
                    digest=checkpoint.digest,
                )
            )
    return tuple(scores)


def arm_record(plan: Plan, run: Store, arm: Arm) -> ArmRecord:
    outcomes = OutcomeStore(run, plan.protocol)
    scores = step_scores(run, arm, outcomes)
    end = ArmStore(run, arm.id).end(plan.protocol)
    if end is not None:
        scores = tuple(score for score in scores if score.step <= end["step"])
    best = best_step(scores)
    checkpoints = {checkpoint.step: checkpoint for checkpoint in ArmStore(run, arm.id).checkpoints()}
    told = trace_counts(plan, run, arm)
    held_out = (outcomes.get(best.digest, "held_out") or ()) if best else ()
    return ArmRecord(
        name=arm.name,
        arm_id=arm.id,
        induction=arm.induction,
        objective=arm.objective,
        initializer=arm.initializer,
        num_tokens=arm.num_tokens,
        training_seed=arm.seed,
        initializer_seed=arm.initializer_seed,
        induction_seed=arm.induction_seed,
        status=end["status"] if end is not None else "unfinished",
        planned_steps=plan.config.recipe.training.steps,
        steps=scores,
        held_out=held_out,
        prefix_bytes=_prefix_bytes(run, best.digest) if best else 0,
        trace_generation_seconds=told["seconds"],
        teacher_tokens=told["teacher_tokens"],
        trace_rows=told["rows"],
        dropped_rows=told["dropped"],
        target_tokens_seen=checkpoints[scores[-1].step].targets_seen if scores else 0,
        expected_requests=plan.config.report.expected_requests,
        observed_requests=_observed(plan).get(arm.name),
        **(_off_source_fields(plan, run, best.digest, held_out) if best else {}),
    )


def _observed(plan: Plan) -> dict[str, int]:
    served = plan.config.report.served_metrics
    return {} if served is None else observed_requests(served)


def _off_source_fields(plan: Plan, run: Store, digest: str, held_out: Sequence[Outcome]) -> dict[str, Any]:
    """The ledger's columns on what a prefix does off its source, and the gate's word once there is a held-out score."""
    damage, gate = damage_of(plan, run, digest), plan.config.recipe.gate
    fields: dict[str, Any] = {}
    if damage is not None:
        fields = {name: getattr(damage, name) for name in ("kl_drift", "accuracy_change", "abstention")}
    scored = [outcome for outcome in held_out if outcome.verdict in SCORED]
    total = sum(outcome.total for outcome in scored)
    if gate is not None and total:
        verdict = judge(gate, sum(outcome.passed for outcome in scored) / total, damage)
        fields["gate"] = "passed" if verdict.passed else "; ".join(verdict.reasons)
    return fields


def check_reportable(plan: Plan, run: Store, arms: list[ArmRecord]) -> None:
    """Raises: DataError when a report of `arms` would be empty or untrue: none was begun, or an ended one has no scores."""
    if not any(ArmStore(run, arm.arm_id).checkpoints() for arm in arms):
        others = len(run.names("arms"))
        raise DataError(
            f"{run}: got no checkpoint of this recipe's {len(arms)} arms (fingerprint {plan.fingerprint}), wanted at least "
            f"one; it holds {others} arm(s) of other recipes. Nothing was written"
        )
    for arm in arms:
        if not arm.steps and ArmStore(run, arm.arm_id).end(plan.protocol) is not None:
            raise DataError(
                f"{run}: arm {arm.name} has ended, but its scores are missing from outcomes/{plan.protocol}"
            )


def baseline_records(plan: Plan, run: Store) -> list[BaselineRecord]:
    """The baselines that have been verified, prompts first."""
    outcomes = OutcomeStore(run, plan.protocol)

    def record(name: str, size: int, subject: str, prefix_bytes: int) -> BaselineRecord:
        tune, held_out = outcomes.get(subject, "tune") or (), outcomes.get(subject, "held_out") or ()
        return BaselineRecord(name, size, prefix_bytes, tune, held_out)

    found = [record(name, size, subject.name, 0) for name, size, subject in prompt_baselines(plan)]
    keys = [(untrained_name(name), untrained_key(plan, name, size)) for name, size in untrained(plan)]
    for name, key in keys + [(handle, library_key(plan, handle)) for handle in library_handles(plan)]:
        digest = baseline_digest(run, key)
        if digest is not None:
            manifest = stored_manifest(run / ARTIFACTS, digest)
            found.append(record(name, manifest.num_tokens, digest, manifest.num_bytes))
    return [baseline for baseline in found if baseline.tune or baseline.held_out]


def library_handles(plan: Plan) -> tuple[str, ...]:
    prefixes = plan.config.recipe.prefixes
    return prefixes.handles if prefixes is not None else ()


def baseline_digest(run: Store, key: str) -> str | None:
    """The artifact that the run remembers under `key`."""
    path = f"baselines/{key}.json"
    return run.read_json(path)["digest"] if run.exists(path) else None


def set_baseline_digest(run: Store, key: str, digest: str) -> None:
    run.write_json(f"baselines/{key}.json", {"digest": digest})


def trace_counts(plan: Plan, run: Store, arm: Arm) -> dict[str, Any]:
    """Counts of the traces an arm trains on, and `seconds`: the time their induction took over all sessions.

    Where `training.teacher_tokens` takes part of the source's trace set, the counts are of that part, the seconds of all.
    """
    told: dict[str, Any] = {"rows": 0, "teacher_tokens": 0, "seconds": 0.0, "dropped": {}}
    for one in arm.trace_sets:
        budget = None if one.family == GENERAL else plan.config.recipe.training.teacher_tokens
        counts = TraceStore(run / f"traces/{one.id}").summary(budget)
        told["rows"] += counts["rows"]
        told["teacher_tokens"] += counts["teacher_tokens"]
        told["seconds"] += induction_record(run, one).get("seconds", 0.0)
        for reason, count in counts["dropped"].items():
            told["dropped"][reason] = told["dropped"].get(reason, 0) + count
    return told


def add_induction_seconds(run: Store, one: TraceSet, seconds: float) -> None:
    """Beside the traces of `one`: what its induction took, added to what it took before."""
    record = induction_record(run, one)
    told = {"family": one.family, "induction_seed": one.induction_seed, "seconds": record.get("seconds", 0.0) + seconds}
    (run / f"traces/{one.id}").write_json(INDUCTION_FILE, {**record, **told})


def judge_induction(plan: Plan, run: Store, one: TraceSet) -> None:
    """Beside the traces of `one`: their quality, judged once for the rows there are."""
    rows = list(TraceStore(run / f"traces/{one.id}").all_rows())
    record = induction_record(run, one)
    if record.get("judged_rows") == len(rows):
        return
    sources = {document.digest: document.text for document in plan.documents}
    found = quality(
        rows,
        text_of=lambda ids: plan.tokenizer.decode(ids, skip_special_tokens=True),
        source_of=lambda digest: None if one.family == GENERAL else sources.get(digest, plan.document_text),
    )
    told = {"judged_rows": len(rows), "quality": asdict(found)}
    (run / f"traces/{one.id}").write_json(INDUCTION_FILE, {**record, **told})


def induction_record(run: Store, one: TraceSet) -> dict[str, Any]:
    """What is known of how `one` was made: seconds, family, induction_seed, quality. Empty before."""
    folder = run / f"traces/{one.id}"
    return folder.read_json(INDUCTION_FILE) if folder.exists(INDUCTION_FILE) else {}


def induction_reports(plan: Plan, run: Store) -> list[dict[str, Any]]:
    """The records of all trace sets of the plan that have been made and judged."""
    records = [record for one in plan.trace_sets() if "quality" in (record := induction_record(run, one))]
    for record in records:  # JSON is stored with its keys sorted as text
        lengths = record["quality"]["lengths"].items()
        record["quality"]["lengths"] = dict(sorted(lengths, key=lambda bin: (bin[0][0] == ">", int(bin[0].split()[1]))))
    return records


def _prefix_bytes(run: Store, digest: str) -> int:
    return stored_manifest(run / ARTIFACTS, digest).num_bytes


def facts(plan: Plan, when: Callable[[], str]) -> dict[str, Any]:
    """What was run, for the head of the report."""
    config, recipe = plan.config, plan.config.recipe
    splits = {split: sum(case.split == split for case in plan.cases) for split in ("tune", "held_out")}
    answers = {split: {case.answers for case in plan.cases if case.split == split} for split in splits}
    return {
        "document": ", ".join(document.name for document in plan.documents),
        "document tokens": len(plan.material),
        "model": recipe.model.id,
        "dtype": recipe.model.dtype,
        "verifier": recipe.verification.kind,
        "cases": f"{splits['tune']} to tune and stop by, {splits['held_out']} held out, which ask for "
        f"{len(answers['held_out'])} answers, {len(answers['held_out'] & answers['tune'])} of them asked for in other words "
        f"while tuning; greedy, at most {recipe.verification.max_tokens} tokens",
        "training": f"{recipe.training.steps} steps of {recipe.training.batch_tokens} tokens, lr {recipe.training.lr:g} "
        f"(keys × {recipe.training.key_lr_factor:g}), {recipe.training.warmup_steps} warm-up steps, cosine to "
        f"{recipe.training.final_lr_fraction:.0%}, clip {recipe.training.clip_norm:g}",
        "stopping": f"ASHA on the tune score from step {recipe.stopping.grace_steps}, tolerance "
        f"{recipe.stopping.tolerance_errors:g} standard errors",
        "workers": f"{config.cluster.training.workers} × ZeRO-{config.cluster.training.zero_stage}, "
        f"{config.cluster.engine.replicas} engine replica(s)",
        "recipe fingerprint": plan.fingerprint,
        "protocol": plan.protocol,
        "made": when(),
    }
