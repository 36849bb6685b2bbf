"""Traces → tokens: validate and tokenise. Shape letters: T tokens, K top-k entries."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from lpc_ray.errors import DataError
from lpc_ray.induction.base import ASK_TOO_LONG
from lpc_ray.model.chat import Written
from lpc_ray.records import TOP_K, Message, Reply, Trace, TraceRow


class Render(Protocol):
    """A chat template: `lpc_ray.model.chat.ChatTemplate`."""

    def __call__(
        self, messages: Sequence[Message], add_generation_prompt: bool, thinking: bool | None = None
    ) -> list[int]: ...

    def written(self, messages: Sequence[Message]) -> Written: ...


@dataclass(frozen=True)
class Provenance:
    """What all rows of one trace set share. `teacher` names the frozen model."""

    family: str
    induction_seed: int
    teacher: str
    max_tokens: int


def tokenise(
    trace: Trace, unit: str, index: int, source_digest: str, provenance: Provenance, render: Render, encode: Callable
) -> TraceRow:
    """One row of the trace store. A trace that cannot be trained on becomes a dropped row with its reason.

    encode: text → token ids. A teacher's own token ids are kept as the engine returned them, never re-tokenised from text.
    """
    common = {
        "id": f"{unit}-{index}",
        "unit": unit,
        "family": provenance.family,
        "induction_seed": provenance.induction_seed,
        "source_digest": source_digest,
        "teacher": provenance.teacher,
        "teacher_tokens": trace.teacher_tokens,
        "scores": np.asarray(trace.scores, np.float32),
    }
    if trace.drop_reason:
        return TraceRow(**common, drop_reason=trace.drop_reason)
    if trace.reply is not None and trace.reply.is_too_long:
        return TraceRow(**common, drop_reason=ASK_TOO_LONG)
    if trace.reply is not None:
        prompt = render(trace.messages[:-1], True, trace.thinking)
        answer = list(trace.reply.token_ids)
    elif trace.messages:
        try:
            written = render.written(trace.messages)
        except DataError:
            return TraceRow(**common, drop_reason="refused_by_template")
        if written.defect:
            return TraceRow(**common, drop_reason=written.defect)
        prompt, answer = written.prompt, written.answer
    else:
        ids = encode(trace.text)
        prompt, answer = ids[:1], ids[1:]
    token_ids = np.asarray(prompt + answer, np.int32)
    reason = _defect(token_ids, answer, provenance.max_tokens)
    if reason:
        return TraceRow(**common, drop_reason=reason)
    row = TraceRow(
        **common,
        token_ids=token_ids,
        is_target=np.arange(len(token_ids)) >= len(prompt),
        truncated=trace.reply is not None and trace.reply.finish_reason == "length",
    )
    if trace.reply is None or trace.reply.topk_ids.shape[1] == 0:
        return row
    if not _is_topk(trace.reply, len(answer)):
        return TraceRow(**common, drop_reason="malformed_topk")
    teacher_prompt = render(trace.teacher_messages, True, trace.thinking) if trace.teacher_messages else []
    return replace(
        row,
        topk_ids=trace.reply.topk_ids,
        topk_logprobs=trace.reply.topk_logprobs,
        teacher_prompt=np.asarray(teacher_prompt, np.int32),
    )


def _is_topk(reply: Reply, length: int) -> bool:
    ids, logprobs = reply.topk_ids, reply.topk_logprobs
    return ids.shape == logprobs.shape == (length, TOP_K) and not (ids < 0).any() and not np.isnan(logprobs).any()


def _defect(token_ids: np.ndarray, answer: list[int], max_tokens: int) -> str | None:
    if not answer:
        return "no_target"
    if (token_ids < 0).any():
        return "negative_token_id"
    if len(token_ids) > max_tokens:
        return "longer_than_window"
    return None
