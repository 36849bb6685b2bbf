"""`curated`: question → answer traces that exist already; induction is the identity (ReasonCACHE, arXiv 2602.02366)."""

import json
import random
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from lpc_ray.config.recipe import MOST
from lpc_ray.induction.base import Family, Steps, Unit
from lpc_ray.records import Chunk, Document, Message, Trace, digest_of
from lpc_ray.sources.conversations import read_conversations
from lpc_ray.sources.documents import Encode


class Curated(Family):
    """JSONL files of conversations that end with the assistant's message, or of GSM8K's questions and answers.

    max_conversations: use only the first ones.
    """

    paths: Annotated[tuple[str, ...], Field(min_length=1)]
    max_conversations: Annotated[int | None, Field(ge=1, le=MOST, exclude_if=lambda limit: limit is None)] = None

    def chunks(self, documents: list[Document], spans: Encode, description: str, seed: int) -> list[tuple[Chunk, int]]:
        origin = digest_of([document.digest for document in documents])
        return [(Chunk(document_digest=origin, text=json.dumps(line, ensure_ascii=False)), 1) for line in self._lines()]

    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        return [Trace(messages=tuple(json.loads(unit.chunk.text)))]
        yield

    def given_texts(self) -> Iterable[str]:
        return (one["content"] for line in self._lines() for one in line if one["role"] != "assistant")

    def given_conversations(self) -> Iterable[list[Message]]:
        return self._lines()

    def needs_teacher(self) -> bool:
        return False

    def has_traces(self) -> bool:
        return True

    def _lines(self) -> list[list[Message]]:
        return [line for path in self.paths for line in read_conversations(path)][: self.max_conversations]


FAMILY = Curated
