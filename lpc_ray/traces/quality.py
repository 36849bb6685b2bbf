"""How good a trace set is before anything is trained on it: what was made, dropped, repeated, cut, and made up."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from lpc_ray.records import TraceRow
from lpc_ray.traces.grounding import Claims, absent, claims

LENGTH_BINS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_MAX_EXAMPLES = 5


@dataclass
class Audit:
    """One kind of claim: how many the targets of all rows state, how many of these their source does not hold."""

    stated: int = 0
    absent: int = 0


@dataclass(frozen=True)
class InductionQuality:
    """Of one trace set; shares are of kept rows and None without any.

    dropped: reason → rows. lengths: "<= n tokens" → kept rows with at most n tokens and more than the bin before.
    duplicates: kept rows whose token ids another kept row has too, but for one of them. truncated: cut by max_tokens.
    teacher_tokens: all that was generated. teacher_entropy: nats per target token, the mean over all of them; what lies
    beyond the top-k counts as one symbol, so it is a lower bound; None without a teacher.
    grounding: numbers, names and quotes in the targets; None for traces that have no source. ungrounded_rows: kept rows
    that state anything absent. examples: a few such rows as (id, what is absent).
    """

    kept: int
    dropped: dict[str, int]
    lengths: dict[str, int]
    duplicates: int
    duplicate_share: float | None
    truncated: int
    truncated_share: float | None
    teacher_tokens: int
    teacher_entropy: float | None
    grounding: dict[str, Audit] | None
    ungrounded_rows: int | None
    examples: list[tuple[str, list[str]]] = field(default_factory=list)


def quality(
    rows: Iterable[TraceRow], text_of: Callable[[list[int]], str], source_of: Callable[[str], str | None]
) -> InductionQuality:
    """The quality of a trace set's rows, dropped ones included.

    text_of: token ids → plain text; source_of: a row's source digest → the text to audit it against, None for none.
    """
    all_rows = list(rows)
    kept = [row for row in all_rows if row.drop_reason is None]
    distinct = {row.token_ids.tobytes() for row in kept}
    duplicates, truncated = len(kept) - len(distinct), sum(row.truncated for row in kept)
    grounding, ungrounded = _audit(kept, text_of, source_of)
    return InductionQuality(
        kept=len(kept),
        dropped=dict(sorted(Counter(row.drop_reason for row in all_rows if row.drop_reason).items())),
        lengths=_histogram([len(row.token_ids) for row in kept]),
        duplicates=duplicates,
        duplicate_share=duplicates / len(kept) if kept else None,
        truncated=truncated,
        truncated_share=truncated / len(kept) if kept else None,
        teacher_tokens=sum(row.teacher_tokens for row in all_rows),
        teacher_entropy=_mean_entropy([row.topk_logprobs for row in kept]),
        grounding=grounding,
        ungrounded_rows=None if grounding is None else len(ungrounded),
        examples=ungrounded[:_MAX_EXAMPLES],
    )


def printed(family: str, summary: Mapping[str, Any]) -> str:
    """The quality of a trace set, a mapping of `InductionQuality`'s fields, as lines for a terminal."""

    def counts(found: Mapping[str, int]) -> str:
        return ", ".join(f"{name}: {count}" for name, count in found.items()) or "none"

    entropy = (
        "no teacher" if summary["teacher_entropy"] is None else f"{summary['teacher_entropy']:.3f} nats per target"
    )
    lines = [
        f"{family}: {summary['kept']} traces kept; dropped: {counts(summary['dropped'])}",
        f"  tokens per trace  {counts(summary['lengths'])}",
        f"  duplicates        {summary['duplicates']}; cut by the token limit: {summary['truncated']}",
        f"  teacher           {summary['teacher_tokens']:,} tokens generated; entropy: {entropy}",
    ]
    if summary["grounding"] is not None:
        audits = (f"{kind} {audit['absent']} of {audit['stated']}" for kind, audit in summary["grounding"].items())
        lines.append(f"  not in the source {', '.join(audits)}; in {summary['ungrounded_rows']} traces")
        lines += [f"    {row}: {', '.join(found)}" for row, found in summary["examples"]]
    return "\n".join(lines)


def entropies(topk_logprobs: np.ndarray) -> np.ndarray:
    """Entropy in nats of each row of top-k log-probs [N, K], the missing mass taken as one symbol; float64 [N]."""
    p = np.exp(topk_logprobs.astype(np.float64))
    rest = np.clip(1 - p.sum(axis=1, keepdims=True), 0, 1)
    everything = np.concatenate([p, rest], axis=1)
    return -(everything * np.log(np.where(everything > 0, everything, 1))).sum(axis=1)


def _mean_entropy(topk_logprobs: list[np.ndarray]) -> float | None:
    found = [entropies(one) for one in topk_logprobs if len(one)]
    return float(np.concatenate(found).mean()) if found else None


def _histogram(lengths: list[int]) -> dict[str, int]:
    """Bins that hold anything, shortest first, and those between them."""
    counts = np.bincount(np.searchsorted(LENGTH_BINS, lengths), minlength=len(LENGTH_BINS) + 1) if lengths else []
    names = [f"<= {limit}" for limit in LENGTH_BINS] + [f"> {LENGTH_BINS[-1]}"]
    filled = np.flatnonzero(counts)
    return {names[at]: int(counts[at]) for at in range(filled[0], filled[-1] + 1)} if len(filled) else {}


def _audit(
    kept: list[TraceRow], text_of: Callable[[list[int]], str], source_of: Callable[[str], str | None]
) -> tuple[dict[str, Audit] | None, list[tuple[str, list[str]]]]:
    audits = {kind: Audit() for kind in Claims.__slots__}
    ungrounded: list[tuple[str, list[str]]] = []
    has_source = False
    for row in kept:
        source = source_of(row.source_digest)
        if source is None:
            continue
        has_source = True
        stated = claims(text_of(row.token_ids[row.is_target].tolist()))
        missing = absent(stated, source)
        for kind, audit in audits.items():
            audit.stated += len(getattr(stated, kind))
            audit.absent += len(getattr(missing, kind))
        found = [one for kind in asdict(missing).values() for one in kind]
        if found:
            ungrounded.append((row.id, found))
    return (audits if has_source else None), ungrounded
