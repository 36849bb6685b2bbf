"""`general`: prompts that have nothing to do with the source, answered by the prefix-free model as it is.

Mixed into training (`training.general_share`) they hold a prefix to the model's own behaviour off its source. Source:
Cartridges++ (2026), which repaired off-source damage with 5 % of such prompts.
"""

import json
import random
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from lpc_ray.config.recipe import MOST
from lpc_ray.induction.base import Family, Steps, Unit
from lpc_ray.induction.study import taught
from lpc_ray.records import TOP_K, Ask, Chunk, Decoding, Document, Message, digest_of
from lpc_ray.sources.conversations import read_openings
from lpc_ray.sources.documents import Encode


class General(Family):
    """JSONL files of conversations or prompts, of which at most `max_prompts` are used; answers are greedy."""

    paths: Annotated[tuple[str, ...], Field(min_length=1)]
    max_prompts: Annotated[int, Field(ge=1, le=MOST)] | None = None
    max_answer_tokens: Annotated[int, Field(ge=1, le=MOST)] = 256

    def chunks(self, documents: list[Document], spans: Encode, description: str, seed: int) -> list[tuple[Chunk, int]]:
        origin = digest_of("general")
        return [
            (Chunk(document_digest=origin, text=json.dumps(one, ensure_ascii=False)), 1) for one in self._openings()
        ]

    def given_texts(self) -> Iterable[str]:
        return (one["content"] for opening in self._openings() for one in opening if one["role"] != "assistant")

    def given_conversations(self) -> Iterable[list[Message]]:
        return self._openings()

    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        opening = tuple(json.loads(unit.chunk.text))
        [reply] = yield [Ask(opening, Decoding(max_tokens=self.max_answer_tokens), top_k=TOP_K)]
        return [taught((), opening, reply)]

    def _openings(self) -> list[list[Message]]:
        return [opening for path in self.paths for opening in read_openings(path)][: self.max_prompts]


FAMILY = General
