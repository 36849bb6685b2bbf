"""`raw`: the source's own text as the target. The negative control: it teaches reciting, not answering.

Source: the next-token baseline of Cartridges, arXiv 2506.06266.
"""

import random
from typing import Annotated

from pydantic import Field

from lpc_ray.config.recipe import MOST
from lpc_ray.induction.base import Family, Steps, Unit
from lpc_ray.records import Chunk, Document, Trace
from lpc_ray.sources.documents import Encode, split_windows


class Raw(Family):
    """Consecutive windows of `window_tokens` tokens, next-token prediction, no teacher."""

    window_tokens: Annotated[int, Field(ge=2, le=MOST)] = 256

    def chunks(self, documents: list[Document], spans: Encode, description: str, seed: int) -> list[tuple[Chunk, int]]:
        return [(chunk, 1) for document in documents for chunk in split_windows(document, spans, self.window_tokens)]

    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        return [Trace(text=unit.chunk.text)]
        yield

    def needs_teacher(self) -> bool:
        return False


FAMILY = Raw
