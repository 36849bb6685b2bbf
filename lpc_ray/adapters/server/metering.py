"""What a request cost, counted where vLLM keeps it: whole also for a client that hangs up."""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary


@dataclass
class Meter:
    """The engine's own states of one request's replies, in the order in which they were taken.

    replies: how many there will be. has_begun: set once each has its first output, and so has read its prefixes.
    """

    replies: int = 1
    states: list[Any] = field(default_factory=list)
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    _begun: int = 0

    def begin_one(self) -> None:
        self._begun += 1
        if self._begun >= self.replies:
            self.has_begun.set()

    @property
    def prompts(self) -> int:
        """How many prompts were taken; samples of one prompt share it."""
        return sum(state.request_index == 0 for state in self.states)

    @property
    def prompt_tokens(self) -> int:
        """Placeholders included."""
        return sum(state.prompt_len for state in self.states if state.request_index == 0)

    @property
    def completion_tokens(self) -> int:
        """Generated so far."""
        return sum(state.detokenizer.num_output_tokens() for state in self.states)


_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


def new_meter(replies: int = 1) -> Meter:
    """The meter of what the engine takes from this task, and from those it starts, from now on."""
    meter = Meter(replies)
    _METER.set(meter)
    return meter


def watch(output_processor: Any) -> None:
    """Have vLLM's `OutputProcessor` tell the meter of the calling task of each reply it takes, and when that has begun."""
    take, process = output_processor.add_request, output_processor.process_outputs
    waiting: WeakValueDictionary[str, Meter] = WeakValueDictionary()  # a request that is aborted first never begins

    def taken(request, *arguments, **named) -> None:
        take(request, *arguments, **named)
        meter = _METER.get()
        if meter is not None:
            meter.states.append(output_processor.request_states[request.request_id])
            waiting[request.request_id] = meter

    def processed(outputs, *arguments, **named) -> Any:
        result = process(outputs, *arguments, **named)
        for output in outputs:
            meter = waiting.pop(output.request_id, None)
            if meter is not None:
                meter.begin_one()
        return result

    output_processor.add_request, output_processor.process_outputs = taken, processed
