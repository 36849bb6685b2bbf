"""`bo`: N candidates per seed prompt at a temperature above 0; the one with the best score is kept (BO-PI).

Source: ours, on the self-study of Cartridges, arXiv 2506.06266, section 4.1. No public text expands the name BO; we read it
as best-of.
"""

import json
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, ImportString

from lpc_ray.config.recipe import MOST
from lpc_ray.induction.base import ASK_TOO_LONG, Steps, Unit
from lpc_ray.induction.study import StudyFamily, defect_of, read_prompts, system_message, taught, user
from lpc_ray.model.thinking import said
from lpc_ray.records import TOP_K, Ask, Chunk, Decoding, Document, Reply, Trace
from lpc_ray.sources.conversations import Task, read_tasks
from lpc_ray.sources.documents import Encode

PROMPTS = read_prompts("bo")


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a scorer judges. `references`: the accepted answers of a task that came with some, else empty."""

    source: str
    question: str
    references: tuple[str, ...]
    reply: Reply


def mean_logprob(candidate: Candidate) -> float:
    """The teacher's mean log-probability of the answer's tokens."""
    return float(np.mean(candidate.reply.logprobs))


class BestOf(StudyFamily):
    """`scorer`: a callable from `Candidate` to a number, or where one can be imported from; more is better.

    tasks: JSONL files of questions with their accepted answers, never held-out ones, for a scorer that verifies; each
    chunk takes the first `conversations_per_chunk` of them. Without tasks the model asks itself. An empty candidate has no
    score. min_score: a unit whose best is below it is dropped.
    """

    num_candidates: Annotated[int, Field(ge=2, le=1000)] = 4
    candidate_temperature: Annotated[float, Field(gt=0, le=100)] = 0.8
    scorer: ImportString[Callable[[Candidate], float]] = mean_logprob
    min_score: Annotated[float, Field(ge=-1e9, le=1e9)] | None = None
    tasks: tuple[str, ...] = ()
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.6
    max_question_tokens: Annotated[int, Field(ge=1, le=MOST)] = 512

    def chunks(self, documents: list[Document], spans: Encode, description: str, seed: int) -> list[tuple[Chunk, int]]:
        drawn = super().chunks(documents, spans, description, seed)
        tasks = self._given_tasks()
        if not tasks:
            return drawn
        return [
            (Chunk(chunk.document_digest, json.dumps([chunk.text, *task], ensure_ascii=False), description), 1)
            for chunk, _ in drawn
            for task in tasks
        ]

    def given_texts(self) -> Iterable[str]:
        return (task.question for task in self._given_tasks())

    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        [template] = PROMPTS["system"]
        chunk, question, references = unit.chunk, "", ()
        if self.tasks:
            text, question, references = json.loads(chunk.text)
            chunk = Chunk(chunk.document_digest, text, chunk.description)
        system = system_message(template, chunk)
        if not question:
            decoding = Decoding(self.temperature, self.max_question_tokens, seed=rng.getrandbits(31))
            [asked] = yield [Ask((system, user(rng.choice(PROMPTS["question"]))), decoding)]
            defect = defect_of(asked, "question", self.max_question_tokens)
            if defect:
                return [Trace(drop_reason=defect)]
            question = said(asked).strip()
        talk = [user(question)]
        sampling = [
            Decoding(self.candidate_temperature, self.max_answer_tokens, seed=rng.getrandbits(31))
            for _ in range(self.num_candidates)
        ]
        replies = yield [Ask((system, *talk), decoding, top_k=TOP_K) for decoding in sampling]
        if any(reply.is_too_long for reply in replies):
            return [Trace(drop_reason=ASK_TOO_LONG)]
        scores = [self._score(Candidate(chunk.text, question, tuple(references), reply)) for reply in replies]
        best = max(range(len(replies)), key=lambda number: (not math.isnan(scores[number]), scores[number]))
        if math.isnan(scores[best]):
            return [Trace(drop_reason="no_usable_candidate", scores=tuple(scores))]
        if self.min_score is not None and scores[best] < self.min_score:
            return [Trace(drop_reason="best_score_too_low", scores=tuple(scores))]
        return [taught([system], talk, replies[best], scores=scores)]

    def _given_tasks(self) -> list[Task]:
        return [task for path in self.tasks for task in read_tasks(path)][: self.conversations_per_chunk]

    def _score(self, candidate: Candidate) -> float:
        return float(self.scorer(candidate)) if said(candidate.reply).strip() else math.nan


FAMILY = BestOf
