"""Traces → tokens: validate, tokenise, store (Parquet, append-only, resumable by id), pack into windows.

Shape letters: T tokens, N targets, K top-k entries, W windows, S tokens per window.
"""

import io
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lpc_ray.errors import DataError
from lpc_ray.records import TOP_K, TRACE_SCHEMA, Message, Trace, TraceRow, digest_of
from lpc_ray.storage import Store

Render = Callable[[list[Message], bool], list[int]]


@dataclass(frozen=True)
class Provenance:
    """What all rows of one trace set share. `teacher` names the frozen model."""

    family: str
    induction_seed: int
    teacher: str
    max_tokens: int


def tokenise(
    trace: Trace, unit: str, index: int, source_digest: str, told: Provenance, render: Render, encode: Callable
) -> TraceRow:
    """One row of the trace store. A trace that cannot be trained on becomes a dropped row with its reason.

    render: (messages, add_generation_prompt) → the chat template's token ids; encode: text → token ids.
    A teacher's own token ids are kept as the engine returned them, never re-tokenised from text.
    """
    common = {
        "id": f"{unit}-{index}",
        "unit": unit,
        "family": told.family,
        "induction_seed": told.induction_seed,
        "source_digest": source_digest,
        "teacher": told.teacher,
        "teacher_tokens": len(trace.reply.token_ids) if trace.reply else 0,
    }
    if trace.drop_reason:
        return TraceRow(**common, drop_reason=trace.drop_reason)
    if trace.reply is not None:
        prompt = render(list(trace.messages[:-1]), True)
        answer = list(trace.reply.token_ids)
    elif trace.messages:
        prompt = render(list(trace.messages[:-1]), True)
        whole = render(list(trace.messages), False)
        if whole[: len(prompt)] != prompt:
            return TraceRow(**common, drop_reason="template_rewrites_prompt")
        answer = whole[len(prompt) :]
        answer = answer[: _end_of_turn(answer, render)]
    else:
        ids = encode(trace.text)
        prompt, answer = ids[:1], ids[1:]
    token_ids = np.asarray(prompt + answer, np.int32)
    reason = _defect(token_ids, answer, told.max_tokens)
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
    if trace.reply.topk_ids.shape != (len(answer), TOP_K) or (trace.reply.topk_ids < 0).any():
        return TraceRow(**common, drop_reason="malformed_topk")
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return TraceRow(**{**values, "topk_ids": trace.reply.topk_ids, "topk_logprobs": trace.reply.topk_logprobs})


def _end_of_turn(answer: list[int], render: Render) -> int:
    """How much of a rendered assistant turn the model itself would generate: through the end-of-turn token.

    Templates may add text after it (SmolLM2: a newline); that text is the same after an empty assistant turn.
    """
    empty = render([{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}], False)
    opened = render([{"role": "user", "content": "x"}], True)
    closing = empty[len(opened) :]
    if not closing or answer[-len(closing) :] != closing:
        return len(answer)
    return len(answer) - len(closing) + 1


def _defect(token_ids: np.ndarray, answer: list[int], max_tokens: int) -> str | None:
    if not answer:
        return "no_target"
    if (token_ids < 0).any():
        return "negative_token_id"
    if len(token_ids) > max_tokens:
        return "longer_than_window"
    return None


class TraceStore:
    """The rows of one trace set: Parquet parts in one folder, each written whole; an id occurs once.

    A part is named by the units it holds, so a batch that runs twice after a crash replaces its own part.
    """

    def __init__(self, store: Store):
        self.store = store

    def append(self, rows: list[TraceRow]) -> None:
        """Add the rows of finished units. Raises: StorageError; nothing is visible then."""
        if not rows:
            return
        columns = {field.name: [_plain(getattr(row, field.name)) for row in rows] for field in fields(TraceRow)}
        table = pa.Table.from_pydict(columns, schema=TRACE_SCHEMA)
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        units = sorted({row.unit for row in rows})
        self.store.write_bytes(f"part-{digest_of(units)}.parquet", sink.getvalue())

    def units(self) -> set[str]:
        """The units that need not be done again."""
        return {unit for table in self._tables(["unit"]) for unit in table["unit"].to_pylist()}

    def rows(self) -> list[TraceRow]:
        """All rows that can be trained on, in the order of their ids."""
        return sorted((row for row in self._all() if row.drop_reason is None), key=lambda row: row.id)

    def summary(self) -> dict:
        """Counts: rows, dropped by reason, truncated, teacher_tokens, targets."""
        counts: Counter = Counter()
        dropped: Counter = Counter()
        for row in self._all():
            counts["teacher_tokens"] += row.teacher_tokens
            if row.drop_reason is not None:
                dropped[row.drop_reason] += 1
                continue
            counts["rows"] += 1
            counts["truncated"] += row.truncated
            counts["targets"] += int(row.is_target.sum())
        keys = ("rows", "truncated", "teacher_tokens", "targets")
        return {**{key: counts[key] for key in keys}, "dropped": dict(sorted(dropped.items()))}

    def digest(self) -> str:
        """The identity of the set: its row ids and token ids."""
        return digest_of([(row.id, row.token_ids.tolist()) for row in self.rows()])

    def _all(self) -> Iterable[TraceRow]:
        seen: set[str] = set()
        for table in self._tables(None):
            for values in table.to_pylist():
                if values["id"] in seen:
                    raise DataError(f"trace store {self.store}: id {values['id']} occurs twice")
                seen.add(values["id"])
                yield _row(values)

    def _tables(self, columns: list[str] | None) -> Iterable[pa.Table]:
        for name in self.store.names():
            if name.endswith(".parquet"):
                try:
                    yield pq.read_table(io.BytesIO(self.store.read_bytes(name)), columns=columns)
                except pa.ArrowException as error:
                    raise DataError(f"trace store {self.store}/{name}: not a readable Parquet file: {error}") from error


def _plain(value):
    return value.tolist() if isinstance(value, np.ndarray) else value


def _row(values: dict) -> TraceRow:
    arrays = {
        "token_ids": np.asarray(values["token_ids"], np.int32),
        "is_target": np.asarray(values["is_target"], bool),
        "topk_ids": np.asarray(values["topk_ids"], np.int32).reshape(-1, TOP_K),
        "topk_logprobs": np.asarray(values["topk_logprobs"], np.float32).reshape(-1, TOP_K),
    }
    return TraceRow(**{**values, **arrays})


@dataclass(frozen=True)
class Windows:
    """Packed samples. A target at sample position t is predicted from the state at t−1.

    token_ids, positions, segments: int64 [W, S]; positions restart at 0 per sample; segment −1 is padding.
    states: int64 [N] flat indices into W·S of the predicting positions; targets: int64 [N].
    topk_ids, topk_logprobs: int64 and float32 [N, K], or None where a sample has no teacher.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    states: np.ndarray
    targets: np.ndarray
    topk_ids: np.ndarray | None
    topk_logprobs: np.ndarray | None


def pack(rows: list[TraceRow], window_tokens: int) -> list[list[TraceRow]]:
    """Greedy first-fit packing, longest first, into windows of at most max(window_tokens, longest sample) tokens."""
    limit = max([window_tokens, *(len(row.token_ids) for row in rows)])
    windows: list[list[TraceRow]] = []
    free: list[int] = []
    for row in sorted(rows, key=lambda row: (-len(row.token_ids), row.id)):
        length = len(row.token_ids)
        slot = next((index for index, room in enumerate(free) if room >= length), None)
        if slot is None:
            windows.append([])
            free.append(limit)
            slot = len(windows) - 1
        windows[slot].append(row)
        free[slot] -= length
    return windows


def collate(windows: list[list[TraceRow]]) -> Windows:
    """Arrays of packed windows, as wide as the fullest one."""
    width = max(1, *(sum(len(row.token_ids) for row in window) for window in windows)) if windows else 1
    shape = (max(1, len(windows)), width)
    token_ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    segments = np.full(shape, -1, np.int64)
    states, targets, ids, logprobs = [], [], [], []
    for number, window in enumerate(windows):
        start = 0
        for segment, row in enumerate(window):
            stop = start + len(row.token_ids)
            token_ids[number, start:stop] = row.token_ids
            positions[number, start:stop] = np.arange(stop - start)
            segments[number, start:stop] = segment
            at = np.flatnonzero(row.is_target)
            states.append(number * width + start + at - 1)
            targets.append(row.token_ids[at].astype(np.int64))
            ids.append(row.topk_ids)
            logprobs.append(row.topk_logprobs)
            start = stop
    taught = all(len(one) == len(target) for one, target in zip(ids, targets, strict=True))
    ids, logprobs = ids or [np.zeros((0, TOP_K), np.int32)], logprobs or [np.zeros((0, TOP_K), np.float32)]
    return Windows(
        token_ids=token_ids,
        positions=positions,
        segments=segments,
        states=np.concatenate(states) if states else np.zeros(0, np.int64),
        targets=np.concatenate(targets) if targets else np.zeros(0, np.int64),
        topk_ids=np.concatenate(ids).astype(np.int64) if taught else None,
        topk_logprobs=np.concatenate(logprobs) if taught else None,
    )


def batches(rows: list[TraceRow], batch_tokens: int, seed: int) -> Iterator[list[TraceRow]]:
    """The traces of optimizer steps 1, 2, …: seeded permutations of all rows end to end, cut into batches.

    A batch takes the next traces while they fit `batch_tokens` together, and at least one.
    """
    batch: list[TraceRow] = []
    free = batch_tokens
    for epoch in itertools.count():
        order = list(range(len(rows)))
        random.Random(f"order-{seed}-{epoch}").shuffle(order)
        for index in order:
            length = len(rows[index].token_ids)
            if batch and length > free:
                yield batch
                batch, free = [], batch_tokens
            batch.append(rows[index])
            free -= length
