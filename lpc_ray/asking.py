"""Asking the model: the generators that do (induction families, verifier kinds), their one runner, and what an engine is.

Such a generator yields a list of Asks, is sent the list of their Replies, and returns its result. It is sequential code that
knows no engine; the runner keeps many of them going and answers all that is pending in one call.
"""

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lpc_ray.records import Ask, Reply

T = TypeVar("T")
Asking = Generator[list[Ask], list[Reply], T]
Generate = Callable[[list[Ask]], list[Reply]]


class Engine(Protocol):
    """The frozen model, in this process's event loop: with or without a prefix, with the top-k of what it generated.

    `cluster.engine.kind` names the module of `lpc_ray.adapters` that makes one, by
    `new_engine(model, recipe, prompt, resources)`.

    answered: how many replies it has given.
    """

    answered: int

    async def start(self) -> "Engine":
        """Load the model; called once. Raises: ConfigError when the engine cannot start with its settings."""
        ...

    def stop(self) -> None:
        """End the engine's own processes, also while they start; blocks for seconds at most."""

    def is_dead(self) -> bool:
        """Whether its own processes have ended, so that no request can be answered any more."""
        ...

    async def generate(self, asks: list[Ask]) -> list[Reply]:
        """Replies in the order of `asks`.

        An ask that does not fit the context gets `Reply.too_long`, and the others their replies. Raises: ArtifactError for a
        prefix of another model or a missing or unfit artifact.
        """
        ...


@dataclass(frozen=True, slots=True)
class Answered(Generic[T]):
    """What a generator returned, and what it took.

    last_reply: the text of its last reply, empty when it never asked. prompt_tokens, generated_tokens: of all its replies.
    seconds: spent in the generator, and its share of each call that answered it: the call's time over the generators in it.
    """

    result: T
    last_reply: str
    prompt_tokens: int
    generated_tokens: int
    seconds: float


def drive(generators: Iterable[Asking[T]], generate: Generate) -> list[Answered[T]]:
    """Run all generators to their ends, in step: one call of `generate` answers every pending ask.

    generate: asks → their replies, in order. Returns one result per generator, in order.
    """
    everyone = [_Running(generator) for generator in generators]
    for one in everyone:
        one.advance(None)
    while pending := [one for one in everyone if one.answered is None]:
        started = time.perf_counter()
        asks = [ask for one in pending for ask in one.asks]
        replies = generate(asks)
        assert len(replies) == len(asks), "a reply for each ask"
        share, start = (time.perf_counter() - started) / len(pending), 0
        for one in pending:
            stop = start + len(one.asks)
            one.answer(replies[start:stop], share)
            start = stop
    return [one.answered for one in everyone if one.answered is not None]


class _Running(Generic[T]):
    """A generator between two calls of the model. `answered`: None until it has returned."""

    def __init__(self, generator: Asking[T]):
        self._generator = generator
        self.asks: list[Ask] = []
        self.answered: Answered[T] | None = None
        self._last_reply = ""
        self._prompt_tokens = self._generated_tokens = 0
        self._seconds = 0.0

    def answer(self, replies: list[Reply], seconds: float) -> None:
        for reply in replies:
            self._last_reply = reply.text
            self._prompt_tokens += reply.num_prompt_tokens
            self._generated_tokens += len(reply.token_ids)
        self._seconds += seconds
        self.advance(replies)

    def advance(self, replies: list[Reply] | None) -> None:
        started = time.perf_counter()
        try:
            self.asks = next(self._generator) if replies is None else self._generator.send(replies)
        except StopIteration as stop:
            seconds = self._seconds + time.perf_counter() - started
            self.answered = Answered(stop.value, self._last_reply, self._prompt_tokens, self._generated_tokens, seconds)
        else:
            self._seconds += time.perf_counter() - started
