"""What a request cost, counted where vLLM keeps it: whole also for a client that hangs up."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Meter:
    """The engine's own states of one request's replies, in the order in which they were taken."""

    states: list[Any] = field(default_factory=list)

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


def new_meter() -> Meter:
    """The meter of what the engine takes from this task, and from those it starts, from now on."""
    meter = Meter()
    _METER.set(meter)
    return meter


def watch(output_processor: Any) -> None:
    """Have vLLM's `OutputProcessor` tell the meter of the calling task of each reply it begins."""
    take = output_processor.add_request

    def taken(request, *arguments, **named) -> None:
        take(request, *arguments, **named)
        meter = _METER.get()
        if meter is not None:
            meter.states.append(output_processor.request_states[request.request_id])

    output_processor.add_request = taken
