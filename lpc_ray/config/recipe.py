"""The recipe: what is made. `Recipe` is hashed by `fingerprint()`, and nothing outside it is."""

from datetime import date as Date
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from lpc_ray.config.loading import Strict

GENERAL = "general"  # the family whose traces know no source: the prefix-free model's own replies
EARLY_STEPS = (0, 1, 2, 4, 8, 16, 24, 48)
PROMPT_DATE = Date(2024, 7, 26)  # what Llama's templates write where there is no clock
MOST = 1 << 30  # tokens: beyond any model's context and any run
MOST_STEPS = 1_000_000


T = TypeVar("T")
Several = Annotated[tuple[T, ...], Field(min_length=1)]
Axis = Annotated[Several[T], BeforeValidator(lambda value: value if isinstance(value, list | tuple) else (value,))]


def _as_num_tokens(value: Any) -> int | float:
    if type(value) is int and 1 <= value <= MOST or type(value) is float and 0 < value < 1:
        return value
    raise ValueError(f"got {value!r}, wanted an integer from 1 to {MOST}, or a fraction of the source between 0 and 1")


NumTokens = Annotated[int | float, BeforeValidator(_as_num_tokens)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]


class ModelRecipe(Strict):
    """The frozen model: `smollm2-135m-instruct` (embedded), a Hugging Face id, or a local folder."""

    id: str = "smollm2-135m-instruct"
    revision: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"


class SourceRecipe(Strict):
    """The source: text and Markdown files or folders. `description` is the line about the corpus a teacher reads."""

    paths: Several[Annotated[str, Field(min_length=1)]]
    description: str = ""


class InductionRecipe(Strict):
    """`families`: name → settings, checked by the family itself (`lpc_ray.induction`).

    `context_tokens`: the longest ask with its reply, and the longest trace; what is longer is dropped and counted. The
    model's own context bounds it too; the engine's may be longer and decides nothing.
    """

    context_tokens: Annotated[int, Field(ge=16, le=MOST)] = 2048
    families: dict[str, dict[str, Any]] = {}


class PrefixRecipe(Strict):
    """`frozen_tokens`: the attention sink, never trained."""

    frozen_tokens: Annotated[int, Field(ge=0, le=MOST)] = 1
    sci_chunk_tokens: Annotated[int, Field(ge=1, le=MOST)] = 64


class InitializersRecipe(Strict):
    """What some initializers need besides the source: name → settings, checked by the initializer itself
    (`lpc_ray.prefix.initializers`).

    `training_free`: initializers whose untrained prefixes are baselines, beside the text prefill, in every prefix size.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, Any] | None] = Field(init=False)  # pyright: ignore  # pydantic sets it, not __init__

    training_free: tuple[str, ...] = ()

    def settings(self) -> dict[str, dict[str, Any]]:
        """Initializer → the settings that the recipe gives it."""
        return {name: given for name, given in (self.__pydantic_extra__ or {}).items() if given is not None}


class BaselinePrefixesRecipe(Strict):
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

    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 60
    lr: Annotated[float, Field(gt=0, le=100)] = 0.05
    key_lr_factor: Annotated[float, Field(gt=0, le=1000)] = 2.0
    warmup_steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = 5
    final_lr_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    batch_tokens: Annotated[int, Field(ge=16, le=MOST)] = 320
    window_tokens: Annotated[int, Field(ge=16, le=MOST)] = 512
    micro_batch_windows: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    gradient_checkpointing: bool = False
    checkpoint_interval: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 48
    checkpoint_steps: tuple[Annotated[int, Field(ge=0, le=MOST_STEPS)], ...] | None = None
    topk_mass: Annotated[float, Field(gt=0, le=1)] | None = None
    renormalise_topk: bool = False
    kl_temperature: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    mix_ntp_weight: Annotated[float, Field(gt=0, lt=1)] = 0.5
    teacher_targets: Literal["stored", "recomputed"] = "stored"
    general_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    teacher_tokens: Annotated[int, Field(ge=1, le=10**15)] | None = None

    @model_validator(mode="after")
    def _checkpoints_are_steps(self) -> "TrainingRecipe":
        steps = self.checkpoint_steps or ()
        if list(steps) != sorted(set(steps)) or any(step > self.steps for step in steps):
            raise ValueError(
                f"recipe.training.checkpoint_steps: got {list(steps)}, wanted ascending steps of at most steps = {self.steps}"
            )
        return self

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

    null leaves it to the chat template; some templates (SmolLM2's) then write one of their own. `thinking`: switches the
    template's thinking on or off in every request and every student's prompt; null leaves it to the template. `date`: what a
    template writes that asks for today's. The last two are no part of an id at their defaults.
    """

    system: str | None = None
    thinking: Annotated[bool | None, Field(strict=True, exclude_if=lambda thinking: thinking is None)] = None
    date: Annotated[Date, Field(exclude_if=lambda day: day == PROMPT_DATE)] = PROMPT_DATE

    def rendering(self) -> dict[str, Any]:
        """The settings, but for `system`, that are not at their defaults."""
        return self.model_dump(mode="json", exclude={"system"})


class VerificationRecipe(Strict):
    """What scores an answerer, and on which cases. Decoding is greedy.

    `cases`: for short_answer a JSONL file of questions, accepted answers and splits; for gsm8k a file of GSM8K; for
    longhealth LongHealth's JSON; for skillsbench a folder of tasks. `settings` are checked by the kind itself
    (`lpc_ray.verification`).
    """

    kind: str = "short_answer"
    cases: str
    settings: dict[str, Any] = {}
    max_tokens: Annotated[int, Field(ge=1, le=MOST)] = 32


class OffSourceRecipe(Strict):
    """What a prefix may damage. `cases`: JSONL of questions that have nothing to do with the source, with accepted answers,
    and questions about its subject that it does not answer, without (`lpc_ray.verification.off_source`).
    """

    cases: str
    max_tokens: Annotated[int, Field(ge=1, le=MOST)] = 32


class GateRecipe(Strict):
    """When a prefix may be published: every threshold that is set must be met by a measured figure.

    min_held_out: share of held-out checks passed. max_kl_drift: nats per token. max_accuracy_drop: of the share of
    unrelated questions answered. min_abstention: share of unanswerable questions declined.
    """

    min_held_out: Annotated[float, Field(ge=0, le=1)] | None = None
    max_kl_drift: Annotated[float, Field(ge=0, le=1e6)] | None = None
    max_accuracy_drop: Annotated[float, Field(ge=-1, le=1)] | None = None
    min_abstention: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _has_a_threshold(self) -> "GateRecipe":
        if not self.model_dump(exclude_none=True):
            raise ValueError(f"recipe.gate: got no threshold, wanted one of {', '.join(type(self).model_fields)}")
        return self


class SweepEntry(Strict):
    """One product of axes; a plain value is an axis of one. `num_tokens`: an integer, or a fraction of the source.

    `objective` and `initializer` name modules of `lpc_ray.training.objectives` and `lpc_ray.prefix.initializers`.
    """

    induction: Axis[str]
    objective: Axis[str]
    initializer: Axis[str]
    num_tokens: Axis[NumTokens] = (128,)
    seed: Axis[Seed] = (0,)
    initializer_seed: Axis[Seed] = (0,)
    induction_seed: Axis[Seed] = (0,)


class StoppingRecipe(Strict):
    """ASHA on the verified tune score. An arm is stopped where it is more than `tolerance_errors` standard errors of the
    difference below the cutoff.
    """

    grace_steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 24
    reduction_factor: Annotated[float, Field(gt=1, le=1000)] = 2.0
    tolerance_errors: Annotated[float, Field(ge=0, le=100)] = 1.0


class Recipe(Strict):
    model: ModelRecipe = ModelRecipe()
    source: SourceRecipe
    prompt: PromptRecipe = PromptRecipe()
    induction: InductionRecipe = InductionRecipe()
    prefix: PrefixRecipe = PrefixRecipe()
    initializers: InitializersRecipe = InitializersRecipe()
    training: TrainingRecipe = TrainingRecipe()
    verification: VerificationRecipe
    baseline_prefixes: BaselinePrefixesRecipe | None = None
    off_source: OffSourceRecipe | None = None
    gate: GateRecipe | None = None
    sweep: Annotated[tuple[SweepEntry, ...], Field(min_length=1)]
    stopping: StoppingRecipe = StoppingRecipe()
