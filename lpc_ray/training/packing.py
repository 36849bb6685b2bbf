"""Trace rows → the batches of optimizer steps, packed into windows.

Shape letters: N targets, M of them taught, K top-k entries, W windows, S tokens per window, R taught samples, T tokens of
the longest one as its teacher saw it.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lpc_ray.config.recipe import GENERAL
from lpc_ray.records import TOP_K, TraceRow


@dataclass(frozen=True)
class Windows:
    """Packed samples. A target at sample position t is predicted from the state at t−1.

    token_ids, positions, segments: int64 [W, S]; positions restart at 0 per sample; segment −1 is padding.
    states: int64 [N] flat indices into W·S of the predicting positions; targets: int64 [N]; is_general: bool [N].
    taught: int64 [M], the targets that have a teacher; topk_ids, topk_logprobs: int64 and float32 [M, K] of these.
    teacher_ids: int64 [R, T], prompt and answer as the teacher of each taught sample saw them, padded on the right;
    teacher_states: int64 [M] flat indices into R·T.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    states: np.ndarray
    targets: np.ndarray
    is_general: np.ndarray
    taught: np.ndarray
    topk_ids: np.ndarray
    topk_logprobs: np.ndarray
    teacher_ids: np.ndarray
    teacher_states: np.ndarray


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
    states = []
    for number, window in enumerate(windows):
        start = 0
        for segment, row in enumerate(window):
            stop = start + len(row.token_ids)
            token_ids[number, start:stop] = row.token_ids
            positions[number, start:stop] = np.arange(stop - start)
            segments[number, start:stop] = segment
            states.append(number * width + start + np.flatnonzero(row.is_target) - 1)
            start = stop
    rows = [row for window in windows for row in window]
    counts = np.asarray([row.is_target.sum() for row in rows], np.int64)
    taught = np.repeat(np.asarray([len(row.topk_ids) > 0 for row in rows], bool), counts)
    is_general = np.repeat(np.asarray([row.family == GENERAL for row in rows], bool), counts)
    teacher_ids, teacher_states = _teacher_sequences([row for row in rows if len(row.topk_ids)])
    return Windows(
        token_ids=token_ids,
        positions=positions,
        segments=segments,
        states=_joined(states, np.int64),
        targets=_joined([row.token_ids[row.is_target] for row in rows], np.int64),
        is_general=is_general,
        taught=np.flatnonzero(taught),
        topk_ids=_joined([row.topk_ids for row in rows], np.int64, (TOP_K,)),
        topk_logprobs=_joined([row.topk_logprobs for row in rows], np.float32, (TOP_K,)),
        teacher_ids=teacher_ids,
        teacher_states=teacher_states,
    )


def _teacher_sequences(rows: list[TraceRow]) -> tuple[np.ndarray, np.ndarray]:
    """`Windows.teacher_ids` and `teacher_states`; a row without a stored teacher prompt has none, and no states."""
    rows = [row for row in rows if len(row.teacher_prompt)]
    sequences = [np.concatenate([row.teacher_prompt, row.token_ids[row.is_target]]) for row in rows]
    width = max([1, *map(len, sequences)])
    ids = np.zeros((max(1, len(rows)), width), np.int64)
    states = []
    for number, (row, sequence) in enumerate(zip(rows, sequences, strict=True)):
        ids[number, : len(sequence)] = sequence
        states.append(number * width + np.arange(len(row.teacher_prompt) - 1, len(sequence) - 1))
    return ids, _joined(states, np.int64)


def _joined(parts: list[np.ndarray], kind: type, shape: tuple[int, ...] = ()) -> np.ndarray:
    return np.concatenate([np.zeros((0, *shape), kind), *parts]).astype(kind)


def batches(
    rows: list[TraceRow],
    batch_tokens: int,
    seed: int,
    general: list[TraceRow] | None = None,
    general_share: float = 0.0,
) -> Iterator[list[TraceRow]]:
    """The traces of optimizer steps 1, 2, …: seeded permutations of all rows end to end, cut into batches.

    A batch takes the next traces while they fit `batch_tokens` together, and at least one. A trace of `general` comes
    next whenever these make up less than `general_share` of all tokens so far.
    """
    batch: list[TraceRow] = []
    free = batch_tokens
    for row in _stream(rows, seed, general or [], general_share):
        length = len(row.token_ids)
        if batch and length > free:
            yield batch
            batch, free = [], batch_tokens
        batch.append(row)
        free -= length


def _stream(rows: list[TraceRow], seed: int, general: list[TraceRow], share: float) -> Iterator[TraceRow]:
    own, others = _endless(rows, f"order-{seed}"), _endless(general, f"general-{seed}")
    tokens = general_tokens = 0
    while True:
        is_general = bool(general) and general_tokens < share * tokens
        row = next(others if is_general else own)
        tokens += len(row.token_ids)
        general_tokens += len(row.token_ids) if is_general else 0
        yield row


def _endless(rows: list[TraceRow], seed: str) -> Iterator[TraceRow]:
    for epoch in itertools.count():
        order = list(range(len(rows)))
        random.Random(f"{seed}-{epoch}").shuffle(order)
        yield from (rows[index] for index in order)
