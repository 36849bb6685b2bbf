"""The nouns every stage shares, and the Arrow schemas in which they are stored.

Shape letters: T tokens, K kept top-k entries.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import numpy as np
import pyarrow as pa

TOP_K = 20
TOO_LONG = "too_long"
Verdict = Literal["pass", "fail", "invalid", "verifier_error", "empty", "harness_confounded"]
SCORED = ("pass", "fail")


class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


def digest_of(*parts: Any) -> str:
    """128 bits of SHA-256 over the canonical JSON of `parts`, as 32 hexadecimal digits."""
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Document:
    """One source file. `digest` covers the text, not the name."""

    name: str
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """A window of a document, and the few words about the corpus that a teacher reads before it."""

    document_digest: str
    text: str
    description: str = ""

    @property
    def digest(self) -> str:
        return digest_of(self.document_digest, self.text, self.description)


@dataclass(frozen=True, slots=True)
class Decoding:
    """Sampling settings of one request. temperature 0 is greedy; `seed` matters above 0."""

    temperature: float = 0.0
    max_tokens: int = 256
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PrefixRef:
    """Where the engine finds a learned prefix: its digest (the identity), a local folder, and its length P."""

    digest: str
    folder: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to the frozen model: chat messages, or token ids as they are; with a prefix or without.

    thinking: switches a chat template's `enable_thinking`; None leaves it to the template.
    """

    messages: tuple[Message, ...] = ()
    decoding: Decoding = Decoding()
    top_k: int = 0
    prefix: PrefixRef | None = None
    token_ids: tuple[int, ...] = ()
    thinking: bool | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the engine generated. All token ids and log-probabilities are the engine's own.

    finish_reason: "stop"; "length" when `max_tokens` cut it; TOO_LONG when prompt and reply did not fit the context together,
    so that nothing was generated.
    token_ids: [T], with the end-of-turn token when `finish_reason` is "stop".
    logprobs: float32 [T], of the generated tokens; empty when the ask wanted no top-k.
    topk_ids, topk_logprobs: int32 and float32 [T, K], best first; K = 0 when the ask wanted none.
    num_prompt_tokens: the client's tokens; a prefix is not counted.
    is_thinking: the prompt's end opened a block of thinking, so that the reply begins inside.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    num_prompt_tokens: int
    logprobs: np.ndarray
    topk_ids: np.ndarray
    topk_logprobs: np.ndarray
    is_thinking: bool = False

    @property
    def is_too_long(self) -> bool:
        return self.finish_reason == TOO_LONG

    @classmethod
    def too_long(cls, num_prompt_tokens: int, top_k: int) -> "Reply":
        """The empty reply to an ask that does not fit."""
        nothing = np.zeros((0, top_k))
        ids, logprobs = nothing.astype(np.int32), nothing.astype(np.float32)
        return cls("", (), TOO_LONG, num_prompt_tokens, np.zeros(0, np.float32), ids, logprobs)


@dataclass(frozen=True, slots=True)
class Trace:
    """What the student sees: chat messages ending in an assistant turn, or plain text when `messages` is empty.

    The targets are the tokens of the last assistant turn (all tokens of a plain text). `reply` holds that turn's own
    token ids and top-k where a teacher wrote it, and `teacher_messages` what the teacher saw before it. A trace with a
    `drop_reason` is counted and not trained on.

    thinking: as in `Ask`. scores: of all candidates of which this was the best, in the order generated; NaN where a
    candidate could not be scored. teacher_tokens: generated for this trace in all its asks; the runner counts them.
    """

    messages: tuple[Message, ...] = ()
    text: str = ""
    reply: Reply | None = None
    drop_reason: str | None = None
    teacher_messages: tuple[Message, ...] = ()
    thinking: bool | None = None
    scores: tuple[float, ...] = ()
    teacher_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """A question with every accepted form of its answer. `split`: tune (stop and choose by it) or held_out."""

    id: str
    question: str
    answers: tuple[str, ...]
    split: Literal["tune", "held_out"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case's verdict. `stage` says where a failure arose; tokens exclude any prefix.

    figures: what a verifier kind measures beside the verdict, such as `lenient` or `reward`.
    """

    case_id: str
    verdict: Verdict
    stage: str
    passed: int
    total: int
    reply: str
    prompt_tokens: int
    generated_tokens: int
    seconds: float
    protocol: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tally:
    """Checks passed of the checks that count: those of outcomes whose verdict is in `SCORED`."""

    passed: int
    total: int

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> "Tally":
        counted = [outcome for outcome in outcomes if outcome.verdict in SCORED]
        return cls(sum(outcome.passed for outcome in counted), sum(outcome.total for outcome in counted))

    @property
    def score(self) -> float | None:
        """passed / total; None when nothing counts."""
        return self.passed / self.total if self.total else None


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A tokenised trace as the trace store holds it.

    token_ids: int32 [T]; is_target: bool [T]; topk_ids, topk_logprobs: int32 and float32 [number of targets, K], empty
    where no teacher wrote the targets. teacher_prompt: int32, the token ids after which the teacher wrote the targets,
    source included; empty likewise. scores: float32, of the candidates. teacher_tokens: generated on the way to this row.
    """

    id: str
    unit: str
    family: str
    induction_seed: int
    source_digest: str
    teacher: str
    token_ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    is_target: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    topk_ids: np.ndarray = field(default_factory=lambda: np.zeros((0, TOP_K), np.int32))
    topk_logprobs: np.ndarray = field(default_factory=lambda: np.zeros((0, TOP_K), np.float32))
    truncated: bool = False
    drop_reason: str | None = None
    teacher_tokens: int = 0
    teacher_prompt: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    scores: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))


TRACE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("unit", pa.string(), nullable=False),
        pa.field("family", pa.string(), nullable=False),
        pa.field("induction_seed", pa.int64(), nullable=False),
        pa.field("source_digest", pa.string(), nullable=False),
        pa.field("teacher", pa.string(), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("is_target", pa.list_(pa.bool_()), nullable=False),
        pa.field("topk_ids", pa.list_(pa.list_(pa.int32(), TOP_K)), nullable=False),
        pa.field("topk_logprobs", pa.list_(pa.list_(pa.float32(), TOP_K)), nullable=False),
        pa.field("truncated", pa.bool_(), nullable=False),
        pa.field("drop_reason", pa.string()),
        pa.field("teacher_tokens", pa.int64(), nullable=False),
        pa.field("teacher_prompt", pa.list_(pa.int32()), nullable=False),
        pa.field("scores", pa.list_(pa.float32()), nullable=False),
    ]
)
