"""Where texts repeat questions, word for word or nearly: many questions against megabytes in seconds.

A source that states a fact does not repeat the question about it, so what is looked for is the question's own words in their
order: candidates come from its rarest words (short questions) or from runs of four words (long ones), and each is compared
word by word.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from lpc_ray.verification.likeness import KINDS, SHORT, Kind, compare, kind_of

LONG = 16  # words from which a question is looked for by runs of words
_LEAST = 0.65  # share of a question's words, in order, below which nothing is repeated
_RUN, _GAP, _BATCH, _MOST = 4, 256, 100_000, 50
_UNSPACED = "\u0e01-\u0edf\u1000-\u109f\u1780-\u17d3\u3005-\u3007\u3041-\u30ff\u3400-\u9fff\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W_]+")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")


@dataclass(frozen=True, slots=True)
class Question:
    """What a case asks, without the form of its answer, and what it accepts."""

    case: str
    text: str
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Repeat:
    """`question` stands in text number `text`, in the line `line` (from 1), which reads `excerpt` there.

    kind: as in `lpc_ray.verification.likeness`.
    """

    question: Question
    text: int
    line: int
    excerpt: str
    kind: Kind


def repeats(questions: Sequence[Question], texts: Sequence[str]) -> list[Repeat]:
    """The strongest repeat of each question that has one, in the order of the questions."""
    index = _Index([words_of(question.text) for question in questions], texts)
    candidates = index.long_candidates()
    found = []
    for number, question in enumerate(questions):
        starts = candidates.get(number, []) if len(index.asked[number]) >= LONG else index.short_candidates(number)
        best = index.strongest(question, number, starts)
        found += [best] if best else []
    return found


def words_of(text: str) -> list[str]:
    """The words of a text in small letters, fast: numbers and contractions fall apart."""
    return _TOKEN.findall(_folded(text))


def _folded(text: str) -> str:
    text = text.casefold()
    return text if text.isascii() else _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))


class _Index:
    """The texts as numbers of words: 0 is any word that no question has; texts are `_GAP` zeros apart."""

    def __init__(self, asked: list[list[str]], texts: Sequence[str]):
        self.asked = asked
        self.texts = [_folded(text) for text in texts]
        self.spans: dict[int, list[tuple[int, int]]] = {}
        self.words = [_TOKEN.findall(text) for text in self.texts]
        known: dict[str, int] = {}
        self.questions = [
            np.asarray([known.setdefault(word, len(known) + 1) for word in words], np.int32) for words in asked
        ]
        self.size = len(known) + 1
        gap = np.zeros(_GAP, np.int32)
        pieces = [gap]
        for words in self.words:
            pieces += [np.fromiter((known.get(word, 0) for word in words), np.int64, len(words)), gap]
        self.ids = np.concatenate(pieces)
        self.begins = list(accumulate((len(words) + _GAP for words in self.words), initial=_GAP))[:-1]
        self.order = np.argsort(self.ids, kind="stable")
        self.first = np.searchsorted(self.ids[self.order], np.arange(self.size + 1))

    def _places(self, word: int) -> np.ndarray:
        return self.order[self.first[word] : self.first[word + 1]]

    def short_candidates(self, number: int) -> list[int]:
        """Where a question of few words may begin: around each of the words of which a repeat must have one."""
        question = self.questions[number]
        length, slack = len(question), _slack(len(question))
        if not length:
            return []
        least = length if length < SHORT else int(np.ceil(_LEAST * length))
        unique, times = np.unique(question, return_counts=True)
        rarest = np.argsort(self.first[unique + 1] - self.first[unique], kind="stable")
        needed = unique[rarest[: int(np.searchsorted(np.cumsum(times[rarest]), length - least + 1)) + 1]]
        starts = [self._places(int(question[at])) - at for at in np.flatnonzero(np.isin(question, needed))]
        starts = np.unique(np.concatenate(starts))
        is_asked = np.zeros(self.size, bool)
        is_asked[unique] = True
        scored: list[tuple[int, int]] = []
        for batch in np.split(starts, range(_BATCH, len(starts), _BATCH)):
            windows = self.ids[batch[:, None] + np.arange(-slack, length + slack)[None, :]]
            kept = is_asked[windows].sum(axis=1) >= least
            windows, batch = windows[kept], batch[kept]
            shared = sum(
                (np.minimum((windows == word).sum(axis=1), count) for word, count in zip(unique, times, strict=True)),
                start=np.zeros(len(batch), np.int32),
            )
            scored += zip(shared[shared >= least].tolist(), batch[shared >= least].tolist(), strict=True)
        return [start for _, start in sorted(scored, key=lambda one: -one[0])[:_MOST]]

    def long_candidates(self) -> dict[int, list[int]]:
        """Question → where it may begin: places that a quarter of its runs of words point to."""
        runs, owners, offsets = [], [], []
        for number, question in enumerate(self.questions):
            if len(question) >= LONG:
                made = self._runs(question)
                runs.append(made)
                owners.append(np.full(len(made), number))
                offsets.append(np.arange(len(made)))
        if not runs:
            return {}
        run, owner, offset = np.concatenate(runs), np.concatenate(owners), np.concatenate(offsets)
        by_run = np.argsort(run, kind="stable")
        run, owner, offset = run[by_run], owner[by_run], offset[by_run]
        there = self._runs(self.ids)
        places = np.flatnonzero(np.isin(there, run) & (np.convolve(self.ids == 0, np.ones(_RUN), "valid") == 0))
        low, high = np.searchsorted(run, there[places]), np.searchsorted(run, there[places], "right")
        counts = high - low
        each = np.repeat(low - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())
        start, who = np.repeat(places, counts) - offset[each], owner[each]
        found: dict[int, list[int]] = {}
        by_owner = np.argsort(who, kind="stable")
        start, bounds = start[by_owner], np.searchsorted(who[by_owner], np.arange(len(self.questions) + 1))
        for number in np.unique(who).tolist():
            length = len(self.questions[number])
            width = _slack(length)
            begins, votes = np.unique(start[bounds[number] : bounds[number + 1]], return_counts=True)
            found[number] = _peaks(begins, votes, width, (length - _RUN + 1) / 4)
        return found

    def _runs(self, ids: np.ndarray) -> np.ndarray:
        """Each run of `_RUN` words as one number, modulo 2^64."""
        made = np.zeros(max(0, len(ids) - _RUN + 1), np.uint64)
        for at in range(_RUN):
            made = made * np.uint64(self.size) + ids[at : at + len(made)].astype(np.uint64)
        return made

    def strongest(self, question: Question, number: int, starts: list[int]) -> Repeat | None:
        """The first exact repeat, or the strongest of all."""
        best: tuple[int, int, int, int] | None = None
        seen: set[bytes] = set()
        reach = np.arange(-_slack(len(self.asked[number])), len(self.asked[number]) + _slack(len(self.asked[number])))
        for start in starts:
            passage = self.ids[np.clip(start + reach, 0, len(self.ids) - 1)].tobytes()
            if passage in seen:
                continue
            seen.add(passage)
            found = self.judged(question, number, start)
            best = found if best is None or (found and found[0] < best[0]) else best
            if best and best[0] == 0:
                break
        if best is None:
            return None
        kind, text, at, to = best
        whole = self.texts[text]
        shown = " ".join(whole[at : to + 1].split())[:160]
        return Repeat(question, text, whole.count("\n", 0, at) + 1, shown, KINDS[kind])

    def judged(self, question: Question, number: int, start: int) -> tuple[int, int, int, int] | None:
        """What the passage around a candidate is to the question: number of the kind, text, first and last character."""
        slack = _slack(len(self.asked[number]))
        begin, end = start - slack, start + len(self.asked[number]) + slack
        text = bisect_right(self.begins, max(start, _GAP)) - 1
        first = max(begin - self.begins[text], 0)
        passage = self.words[text][first : max(end - self.begins[text], 0)]
        compared = compare(self.asked[number], passage)
        if compared is None or compared.share < (_LEAST if len(self.asked[number]) >= SHORT else 1):
            return None
        spans, whole = self._spans(text), self.texts[text]
        at, to = spans[first + compared.first][0], spans[first + compared.last][1]
        kind = kind_of(question.text, question.answers, compared, whole[max(0, at - 40) : at], whole[to : to + 200])
        if kind is None:
            return None
        return KINDS.index(kind), text, at, to

    def _spans(self, text: int) -> list[tuple[int, int]]:
        """(Start, end) of each word of a text."""
        if text not in self.spans:
            self.spans[text] = [match.span() for match in _TOKEN.finditer(self.texts[text])]
        return self.spans[text]


def _peaks(begins: np.ndarray, votes: np.ndarray, width: int, least: float) -> list[int]:
    """The places of most votes among those that have `least` within `width` behind them, most voted first, apart."""
    sums = np.concatenate([[0], np.cumsum(votes)])
    near = sums[np.searchsorted(begins, begins + width, "right")] - sums[np.searchsorted(begins, begins - width)]
    found: dict[int, int] = {}
    for at in np.flatnonzero(near >= least)[np.argsort(-votes[near >= least], kind="stable")].tolist():
        begin = int(begins[at])
        if not any(place in found for place in (begin // width - 1, begin // width, begin // width + 1)):
            found[begin // width] = begin
        if len(found) == _MOST:
            break
    return list(found.values())


def _slack(length: int) -> int:
    """By how many words a repeat may begin early or end late."""
    return length // 4 + 1
