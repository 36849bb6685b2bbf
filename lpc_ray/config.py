"""Recipes and job configs: what is made, and where.

`recipe` decides what comes out and is hashed by `fingerprint()`. `cluster`, `store`, `tracking` and `report` say where it
runs and what is told of it, and are never hashed: the same recipe on any cluster yields the same ids. This module imports
nothing heavy, so that a job can refuse a bad config at once.
"""

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lpc_ray.errors import ConfigError

Objective = Literal["ntp", "kl", "mix"]
InitializerName = Literal[
    "first_k",
    "sci",
    "strided_rope",
    "text",
    "random_tokens",
    "random_vectors",
    "pretrained",
    "attention_matching",
]
VerifierKind = Literal["short_answer", "gsm8k", "longhealth", "skillsbench"]
GENERAL = "general"  # the family whose traces know no source: the prefix-free model's own replies
EARLY_STEPS = (0, 1, 2, 4, 8, 16, 24, 48)


T = TypeVar("T")
Several = Annotated[tuple[T, ...], Field(min_length=1)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Config = TypeVar("Config", bound=Strict)


class ModelRecipe(Strict):
    """The frozen model: `smollm2-135m-instruct` (embedded), a Hugging Face id, or a local folder."""

    id: str = "smollm2-135m-instruct"
    revision: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"


class SourceRecipe(Strict):
    """Raw material: text and Markdown files or folders. `description` is the line about the corpus a teacher reads."""

    paths: Several[Annotated[str, Field(min_length=1)]]
    description: str = ""


class InductionRecipe(Strict):
    """`families`: name → settings, checked by the family itself (`lpc_ray.induction`)."""

    families: dict[str, dict[str, Any]] = {}


class PrefixRecipe(Strict):
    """`frozen_tokens`: the attention sink, never trained."""

    frozen_tokens: Annotated[int, Field(ge=0)] = 1
    sci_chunk_tokens: Annotated[int, Field(ge=1)] = 64


class TextRecipe(Strict):
    """`path`: a UTF-8 file; `text` starts from its first tokens."""

    path: str


class PretrainedRecipe(Strict):
    """An earlier LPC: `handle` (or digest) in `store`, a run's folder or any store that `lpc` wrote."""

    store: str
    handle: str


class AttentionMatchingRecipe(Strict):
    """`query_tokens` tokens of the material, in sampled chunks, ask; `ridge` pulls solved values towards the tokens' own."""

    query_tokens: Annotated[int, Field(ge=1)] = 256
    query_chunk_tokens: Annotated[int, Field(ge=1)] = 64
    ridge: Annotated[float, Field(gt=0)] = 1e-3


class InitializersRecipe(Strict):
    """What some initializers need besides the source.

    `training_free`: initializers whose untrained prefixes are baselines, beside the text prefill, in every prefix size.
    """

    text: TextRecipe | None = None
    pretrained: PretrainedRecipe | None = None
    attention_matching: AttentionMatchingRecipe = AttentionMatchingRecipe()
    training_free: tuple[InitializerName, ...] = ()


class PrefixesRecipe(Strict):
    """LPCs that exist already, verified beside the baselines: handles, digests or compositions `a+b` in `store`."""

    store: str
    handles: Annotated[tuple[str, ...], Field(min_length=1)]


class TrainingRecipe(Strict):
    """AdamW on the prefix, weight decay 0. `lr` is for values; keys use `lr * key_lr_factor`.

    A step takes the next traces that fit `batch_tokens` (over all workers), packed into windows of `window_tokens`. After
    `warmup_steps` the rate follows a cosine down to `final_lr_fraction`. Checkpoints: 0, 1, 2, 4, 8, 16, 24, 48, then every
    `checkpoint_interval` steps, and the last step.

    Distillation: `topk_mass` keeps the shortest rank prefix that reaches it. `teacher_targets`: the top-k stored in the
    traces, or the whole vocabulary, recomputed at every step with the source before the frozen model. `mix_ntp_weight`: the
    share of next-token prediction in objective `mix`. `general_share` of the tokens are general prompts (family
    `general`), distilled from the prefix-free model. `teacher_tokens`: train on as many traces as cost so many in all.
    """

    steps: Annotated[int, Field(ge=1)] = 60
    lr: Annotated[float, Field(gt=0)] = 0.05
    key_lr_factor: Annotated[float, Field(gt=0)] = 2.0
    warmup_steps: Annotated[int, Field(ge=0)] = 5
    final_lr_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    batch_tokens: Annotated[int, Field(ge=1)] = 320
    window_tokens: Annotated[int, Field(ge=16)] = 512
    micro_batch_windows: Annotated[int, Field(ge=1)] = 1
    gradient_checkpointing: bool = False
    checkpoint_interval: Annotated[int, Field(ge=1)] = 48
    checkpoint_steps: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    topk_mass: Annotated[float, Field(gt=0, le=1)] | None = None
    renormalise_topk: bool = False
    kl_temperature: Annotated[float, Field(gt=0)] = 1.0
    mix_ntp_weight: Annotated[float, Field(gt=0, lt=1)] = 0.5
    teacher_targets: Literal["stored", "recomputed"] = "stored"
    general_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    teacher_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _temperature_has_a_whole(self) -> "TrainingRecipe":
        is_whole = self.renormalise_topk or (self.teacher_targets == "recomputed" and self.topk_mass is None)
        if self.kl_temperature != 1 and not is_whole:
            raise ValueError(
                f"recipe.training.kl_temperature: got {self.kl_temperature:g} over a cut-off distribution, whose rest is "
                f"unknown; wanted 1, renormalise_topk: true, or teacher_targets: recomputed without topk_mass"
            )
        return self

    def checkpoints(self) -> list[int]:
        """The optimizer steps at which the prefix is published and verified, ascending, ending at `steps`."""
        if self.checkpoint_steps is not None:
            wanted: set[int] = set(self.checkpoint_steps)
        else:
            wanted = set(EARLY_STEPS)
            wanted.update(range(EARLY_STEPS[-1], self.steps, self.checkpoint_interval))
        return sorted({step for step in wanted if step < self.steps} | {0, self.steps})


class PromptRecipe(Strict):
    """`system`: the system message that opens every student's prompt and every request of an arm without a document.

    null leaves it to the chat template; some templates (SmolLM2's) then write one of their own.
    """

    system: str | None = None


class VerificationRecipe(Strict):
    """What scores an answerer, and on which cases. Decoding is greedy.

    `cases`: for short_answer a JSONL file of questions, accepted answers and splits; for gsm8k a file of GSM8K; for
    longhealth LongHealth's JSON; for skillsbench a folder of tasks. `settings` are checked by the kind itself
    (`lpc_ray.verification`).
    """

    kind: VerifierKind = "short_answer"
    cases: str
    settings: dict[str, Any] = {}
    max_tokens: Annotated[int, Field(ge=1)] = 32


class OffSourceRecipe(Strict):
    """What a prefix may damage. `cases`: JSONL of questions that have nothing to do with the source, with accepted answers,
    and questions about its subject that it does not answer, without (`lpc_ray.verification.off_source`).
    """

    cases: str
    max_tokens: Annotated[int, Field(ge=1)] = 32


class GateRecipe(Strict):
    """When a prefix may be published: every threshold that is set must be met by a measured figure.

    min_held_out: share of held-out checks passed. max_kl_drift: nats per token. max_accuracy_drop: of the share of
    unrelated questions answered. min_abstention: share of unanswerable questions declined.
    """

    min_held_out: Annotated[float, Field(ge=0, le=1)] | None = None
    max_kl_drift: Annotated[float, Field(ge=0)] | None = None
    max_accuracy_drop: Annotated[float, Field(ge=-1, le=1)] | None = None
    min_abstention: Annotated[float, Field(ge=0, le=1)] | None = None


class SweepEntry(Strict):
    """One product of axes; a plain value is an axis of one. `num_tokens`: an integer, or a fraction of the source."""

    induction: str | Several[str]
    objective: Objective | Several[Objective]
    initializer: InitializerName | Several[InitializerName]
    num_tokens: int | float | Several[int | float] = 128
    seed: int | Several[int] = 0
    initializer_seed: int | Several[int] = 0
    induction_seed: int | Several[int] = 0


class StoppingRecipe(Strict):
    """ASHA on the verified tune score. An arm `tolerance_errors` standard errors below the cutoff is stopped."""

    grace_steps: Annotated[int, Field(ge=1)] = 24
    reduction_factor: Annotated[float, Field(gt=1)] = 2.0
    tolerance_errors: Annotated[float, Field(ge=0)] = 1.0


class Recipe(Strict):
    model: ModelRecipe = ModelRecipe()
    source: SourceRecipe
    prompt: PromptRecipe = PromptRecipe()
    induction: InductionRecipe = InductionRecipe()
    prefix: PrefixRecipe = PrefixRecipe()
    initializers: InitializersRecipe = InitializersRecipe()
    training: TrainingRecipe = TrainingRecipe()
    verification: VerificationRecipe
    prefixes: PrefixesRecipe | None = None
    off_source: OffSourceRecipe | None = None
    gate: GateRecipe | None = None
    sweep: Annotated[tuple[SweepEntry, ...], Field(min_length=1)]
    stopping: StoppingRecipe = StoppingRecipe()


class EngineResources(Strict):
    """One pool of engine replicas serves teacher and verifier. `extra` goes to vLLM's engine arguments as it is."""

    replicas: Annotated[int, Field(ge=1)] = 1
    cpus: Annotated[float, Field(ge=0)] = 0.5
    gpus: Annotated[float, Field(ge=0)] = 0
    threads: Annotated[int, Field(ge=1)] | None = None
    max_model_len: Annotated[int, Field(ge=64)] = 2048
    max_num_seqs: Annotated[int, Field(ge=1)] = 64
    kv_cache_gib: Annotated[int, Field(ge=1)] = 2
    gpu_memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.85
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    extra: dict[str, Any] = {}


class TrainingResources(Strict):
    """The training group: Ray Train workers under DeepSpeed. ZeRO-3 shards the backbone as well."""

    workers: Annotated[int, Field(ge=1)] = 1
    cpus: Annotated[float, Field(gt=0)] = 0.5
    gpus: Annotated[float, Field(ge=0)] = 0
    threads: Annotated[int, Field(ge=1)] = 2
    zero_stage: Literal[1, 3] = 1
    max_failures: Annotated[int, Field(ge=0)] = 3


class InductionResources(Strict):
    actors: Annotated[int, Field(ge=1)] = 2
    cpus: Annotated[float, Field(gt=0)] = 0.1
    units_per_batch: Annotated[int, Field(ge=1)] = 16


class ClusterConfig(Strict):
    """`address`: a Ray cluster to join; null starts a local Ray unless this process is a submitted job."""

    address: str | None = None
    local_cpus: Annotated[int, Field(ge=1)] | None = None
    engine: EngineResources = EngineResources()
    training: TrainingResources = TrainingResources()
    induction: InductionResources = InductionResources()


class StoreConfig(Strict):
    """`url`: a local folder or any fsspec URL; the run is the folder `name` below it."""

    url: str = "runs"


class TrackingConfig(Strict):
    """`uri`: an MLflow tracking server; null is an SQLite store inside the run's folder."""

    uri: str | None = None
    experiment: str = "lpc_ray"


class ReportConfig(Strict):
    """`thresholds`: of the steps-to-quality table, as shares such as 0.5 or `12/19`. `expected_requests`: how often each
    prefix is expected to be used, for break-even; null is unknown. `served_metrics`: a file with what the server's /metrics
    answered, whose requests are the observed ones of the arms it names.
    """

    thresholds: tuple[float | str, ...] = (0.25, 0.50, 0.60)
    expected_requests: Annotated[int, Field(ge=1)] | None = None
    served_metrics: str | None = None


class JobConfig(Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    recipe: Recipe
    cluster: ClusterConfig = ClusterConfig()
    store: StoreConfig = StoreConfig()
    tracking: TrackingConfig = TrackingConfig()
    report: ReportConfig = ReportConfig()

    @model_validator(mode="after")
    def _families_exist(self) -> "JobConfig":
        known = set(self.recipe.induction.families)
        for entry in self.recipe.sweep:
            for family in as_axis(entry.induction):
                if family not in known:
                    raise ValueError(
                        f"recipe.sweep: got induction {family!r}, wanted one of recipe.induction.families: "
                        f"{', '.join(sorted(known)) or 'none given'}{_nearest(family, known)}"
                    )
        if self.recipe.training.general_share and GENERAL not in known:
            raise ValueError(
                f"recipe.training.general_share: got {self.recipe.training.general_share:g} without a family "
                f"recipe.induction.families.{GENERAL}, whose prompts are to be mixed in"
            )
        return self

    @model_validator(mode="after")
    def _gate_is_measured(self) -> "JobConfig":
        gate = self.recipe.gate
        if gate and self.recipe.off_source is None:
            wanted = [name for name, bound in gate if bound is not None and name != "min_held_out"]
            if wanted:
                raise ValueError(f"recipe.gate.{wanted[0]}: got a bound, but recipe.off_source does not measure it")
        return self


def as_axis(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def load(path: str | Path, overrides: list[str] | None = None) -> JobConfig:
    """The config in YAML file `path`, with `overrides` such as `recipe.training.lr=0.02` applied.

    Raises: ConfigError (one line: got, wanted, where) for a missing or malformed file, an unknown key, which it names
    beside the nearest valid one, or a value out of range.
    """
    return validated(JobConfig, read(path, overrides), path)


def read(path: str | Path, overrides: list[str] | None = None) -> dict[str, Any]:
    """The mapping in a YAML file, overridden and not yet checked."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from error
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"config {path}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"config {path}: got YAML that is nested too deeply") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"config {path}: got {type(raw).__name__}, wanted a mapping of fields")
    for override in overrides or []:
        _apply(raw, override)
    return raw


def validated(kind: type[Config], raw: dict[str, Any], where: str | Path) -> Config:
    """`raw` as a config of that kind. Raises: ConfigError for the first thing wrong with it."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"config {where}: {_explain(error, kind)}") from error


def _apply(raw: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator or not all(key.split(".")):
        raise ConfigError(f"override {override!r}: wanted field.path=value")
    *parents, last = key.split(".")
    node: Any = raw
    for part in parents:
        node = node.setdefault(part, {}) if isinstance(node, dict) else node
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
    if not isinstance(node, dict):
        raise ConfigError(f"override {override!r}: {'.'.join(parents)} holds no fields")
    try:
        node[last] = yaml.safe_load(value)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"override {override[:80]!r}: the value is not YAML") from error


def _explain(error: ValidationError, kind: type[Strict]) -> str:
    """The first problem as one line; an unknown key is shown with the nearest valid one."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "top level"
    if problem["type"] == "extra_forbidden":
        valid = _fields_at(problem["loc"][:-1], kind)
        return f"unknown key {where}{_nearest(str(problem['loc'][-1]), valid)}"
    if problem["type"] == "missing":
        return f"missing key {where}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return message
    return f"{where}: got {problem['input']!r}, {message[0].lower()}{message[1:]}"


def _fields_at(location: tuple[int | str, ...], kind: type[Strict]) -> set[str]:
    model: Any = kind
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        inner = [kind for kind in get_args(annotation) if kind is not type(None)]
        annotation = inner[0] if inner else annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return set()
        model = annotation
    return set(model.model_fields)


def _nearest(name: str, valid: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
