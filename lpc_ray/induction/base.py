"""What a family is, and how its units are run together.

A family cuts documents into units of work and, for one unit, is a plain generator: it yields a list of Asks, is sent the
list of their Replies, and returns Traces. It knows no engine and no framework, and a scripted teacher can drive it.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lpc_ray.asking import Asking, Generate, drive
from lpc_ray.config.loading import Strict
from lpc_ray.errors import DataError
from lpc_ray.records import Chunk, Document, Message, Trace, digest_of
from lpc_ray.sources.documents import Encode

ASK_TOO_LONG = "ask_too_long"  # of a trace whose ask did not fit the context
Steps = Asking[list[Trace]]


@dataclass(frozen=True, slots=True)
class Unit:
    """One generator's worth of work: the `index`-th piece that a family draws from `chunk`. `id` decides resumption."""

    id: str
    chunk: Chunk
    index: int


class Induces(Protocol):
    """What the runner needs of a family."""

    def induce(self, unit: Unit, rng: random.Random) -> Steps: ...


class Family(Strict, ABC):
    """A PI family with its settings (they are hashed into the ids of its traces)."""

    @abstractmethod
    def chunks(self, documents: list[Document], spans: Encode, description: str, seed: int) -> list[tuple[Chunk, int]]:
        """What to work on: chunks, and how many units each is good for. Units that share a chunk stay adjacent.

        spans: text → the (start, end) characters of each token.
        """

    @abstractmethod
    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        """The traces of one unit. All randomness comes from `rng`."""

    def needs_teacher(self) -> bool:
        return True

    def has_traces(self) -> bool:
        """Whether the user brings its traces, so that induction is the identity."""
        return False

    def longest_ask(self, document_tokens: int) -> int:
        """Tokens of chunk and reply in the longest ask that a document of so many tokens can lead to, at least."""
        return 0

    def given_conversations(self) -> Iterable[Sequence[Message]]:
        """What the user put into the family as conversations, to be rendered as they are. Raises: DataError."""
        return ()

    def switches_thinking(self) -> bool:
        """Whether its asks switch the model's thinking."""
        return False

    def given_texts(self) -> Iterable[str]:
        """What the user put into the family for the model to read as asked, none of which may hold a held-out question.

        Raises: DataError.
        """
        return ()


def plan_units(
    family: Family, name: str, documents: list[Document], spans: Encode, description: str, seed: int
) -> list[Unit]:
    """All units of a trace set, each with the id under which its rows are stored.

    Raises: DataError when the family finds nothing to work on.
    """
    settings = family.model_dump(mode="json")
    units = []
    for position, (chunk, count) in enumerate(family.chunks(documents, spans, description, seed)):
        for index in range(count):
            unit_id = digest_of("unit", chunk.digest, name, settings, seed, position, index)
            units.append(Unit(id=unit_id, chunk=chunk, index=index))
    if not units:
        raise DataError(f"induction {name}: got no unit of work from {len(documents)} documents")
    return units


def run_units(family: Induces, units: list[Unit], seed: int, generate: Generate) -> dict[str, list[Trace]]:
    """Drive the generators of all `units` together: one call of `generate` answers every pending ask.

    Returns: unit id → its traces, at least one per unit, with their teacher tokens.
    """
    steps = [family.induce(unit, random.Random(digest_of(unit.id, seed))) for unit in units]
    found = zip(units, drive(steps, generate), strict=True)
    return {unit.id: _charged(answered.result, answered.generated_tokens) for unit, answered in found}


def _charged(traces: list[Trace], generated_tokens: int) -> list[Trace]:
    """Each trace pays for its own reply, the first one also for all else that its unit had generated."""
    assert traces, "a unit without a trace, if only a dropped one, would be done again for ever"
    own = [len(trace.reply.token_ids) if trace.reply else 0 for trace in traces]
    own[0] += generated_tokens - sum(own)
    return [replace(trace, teacher_tokens=tokens) for trace, tokens in zip(traces, own, strict=True)]
