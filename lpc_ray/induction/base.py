"""What a family is, and the runner that keeps many of them going at once.

A family cuts documents into units of work and, for one unit, is a plain generator: it yields a list of Asks, is sent the
list of their Replies, and returns Traces. It knows no engine and no framework, and a scripted teacher can drive it.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from lpc_ray.config.loading import Strict
from lpc_ray.errors import DataError
from lpc_ray.records import Ask, Chunk, Document, Reply, Trace, digest_of
from lpc_ray.sources.documents import Encode

Steps = Generator[list[Ask], list[Reply], list[Trace]]
Generate = Callable[[list[Ask]], list[Reply]]


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

    def longest_ask(self, document_tokens: int) -> int:
        """Tokens of chunk and reply in the longest ask that a document of so many tokens can lead to, at least."""
        return 0

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
    finished: dict[str, list[Trace]] = {}
    running = [_Running(unit, family.induce(unit, random.Random(digest_of(unit.id, seed)))) for unit in units]
    for one in running:
        one.advance(None, finished)
    while running := [one for one in running if one.unit.id not in finished]:
        replies = generate([ask for one in running for ask in one.asks])
        start = 0
        for one in running:
            stop = start + len(one.asks)
            one.advance(replies[start:stop], finished)
            start = stop
    return finished


@dataclass(slots=True)
class _Running:
    """A unit's generator between two calls of the engine. `generated_tokens`: of all its replies so far."""

    unit: Unit
    steps: Steps
    asks: list[Ask] = field(default_factory=list)
    generated_tokens: int = 0

    def advance(self, replies: list[Reply] | None, finished: dict[str, list[Trace]]) -> None:
        self.generated_tokens += sum(len(reply.token_ids) for reply in replies or [])
        try:
            self.asks = next(self.steps) if replies is None else self.steps.send(replies)
        except StopIteration as stop:
            assert stop.value, "a unit without a trace, if only a dropped one, would be done again for ever"
            finished[self.unit.id] = _charged(stop.value, self.generated_tokens)


def _charged(traces: list[Trace], generated_tokens: int) -> list[Trace]:
    """Each trace pays for its own reply, the first one also for all else that its unit had generated."""
    own = [len(trace.reply.token_ids) if trace.reply else 0 for trace in traces]
    own[0] += generated_tokens - sum(own)
    return [replace(trace, teacher_tokens=tokens) for trace, tokens in zip(traces, own, strict=True)]
