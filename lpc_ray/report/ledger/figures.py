"""The figures that an arm of the sweep and a row of the ledger share. None: unknown or not measured, never 0."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RecipeAxes:
    """What was varied. None: unknown, or not of this kind of row. num_tokens: of the prefix, or of the truncated document."""

    induction: str | None = None
    objective: str | None = None
    initializer: str | None = None
    seed: int | None = None
    initializer_seed: int | None = None
    induction_seed: int | None = None
    num_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What was paid. trace_generation_seconds, teacher_tokens, trace_rows, dropped_rows (reason → rows): of the arm's whole
    trace set, also where arms share it. expected_requests: as declared; observed_requests: as served. None: not measured.
    """

    prefix_bytes: int | None = None
    trace_generation_seconds: float | None = None
    teacher_tokens: int | None = None
    trace_rows: int | None = None
    dropped_rows: dict[str, int] | None = None
    target_tokens_seen: int | None = None
    expected_requests: int | None = None
    observed_requests: int | None = None


@dataclass(frozen=True, kw_only=True)
class OffSource:
    """What the prefix does off its source, with the artifact of the best step. None: not measured.

    kl_drift: nats per token. accuracy_change: share of unrelated questions answered, against the bare model. abstention: share
    of unanswerable questions declined. accuracy_bare, abstention_bare: the same shares of the bare model. gate: `passed`, or
    what stood in the way.
    """

    kl_drift: float | None = None
    accuracy_change: float | None = None
    accuracy_bare: float | None = None
    abstention: float | None = None
    abstention_bare: float | None = None
    gate: str | None = None
