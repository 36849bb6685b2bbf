"""What a family is, and the runner that keeps many of them going at once.

A family cuts documents into units of work and, for one unit, is a plain generator: it yields a list of Asks, is sent the
list of their Replies, and returns Traces. It knows no engine and no framework, and a scripted teacher can drive it.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from lpc_ray.errors import DataError
from lpc_ray.records import Ask, Chunk, Document, Reply, Trace, digest_of
from lpc_ray.sources import Encode

Steps = Generator[list[Ask], list[Reply], list[Trace]]
Generate = Callable[[list[Ask]], list[Reply]]


@dataclass(frozen=True, slots=True)
class Unit:
    """One generator's worth of work: the `index`-th piece that a family draws from `chunk`. `id` decides resumption."""

    id: str
    chunk: Chunk
    index: int


class Family(BaseModel, ABC):
    """A PI family with its settings (they are hashed into the ids of its traces)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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


def run_units(family: Family, units: list[Unit], seed: int, generate: Generate) -> dict[str, list[Trace]]:
    """Drive the generators of all `units` together: one call of `generate` answers every pending ask.

    Returns: unit id → its traces.
    """
    finished: dict[str, list[Trace]] = {}
    waiting: list[tuple[Unit, Steps, list[Ask]]] = []
    for unit in units:
        steps = family.induce(unit, random.Random(digest_of(unit.id, seed)))
        _advance(unit, steps, None, waiting, finished)
    while waiting:
        running, waiting = waiting, []
        replies = generate([ask for _, _, asks in running for ask in asks])
        start = 0
        for unit, steps, asks in running:
            _advance(unit, steps, replies[start : start + len(asks)], waiting, finished)
            start += len(asks)
    return finished


def _advance(
    unit: Unit,
    steps: Steps,
    replies: list[Reply] | None,
    waiting: list[tuple[Unit, Steps, list[Ask]]],
    finished: dict[str, list[Trace]],
) -> None:
    try:
        asks = next(steps) if replies is None else steps.send(replies)
        waiting.append((unit, steps, asks))
    except StopIteration as stop:
        finished[unit.id] = stop.value
