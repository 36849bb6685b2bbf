"""A family looked at before it costs anything: a few units' asks, replies and traces, and what the whole would cost."""

import random
import textwrap
import time
from dataclasses import dataclass, field

from lpc_ray.asking import Generate
from lpc_ray.induction.base import Family, Steps, Unit
from lpc_ray.records import TOO_LONG, Ask, Message, Reply, TraceRow
from lpc_ray.report.pages.escape import visible
from lpc_ray.traces.inducer import Inducer
from lpc_ray.traces.store import as_parquet

_SHOWN_CHARACTERS = 700


@dataclass(frozen=True)
class Estimate:
    """What a number of units cost or would cost: tokens, seconds, and bytes of stored traces."""

    units: int
    asks: int
    prompt_tokens: int
    teacher_tokens: int
    kept_rows: int
    dropped_rows: int
    trace_bytes: int
    seconds: float

    def scaled(self, units: int) -> "Estimate":
        factor = units / self.units
        whole = [round(value * factor) for value in (self.asks, self.prompt_tokens, self.teacher_tokens)]
        rows = [round(value * factor) for value in (self.kept_rows, self.dropped_rows, self.trace_bytes)]
        return Estimate(units, *whole, *rows, seconds=self.seconds * factor)


@dataclass(frozen=True)
class Preview:
    """Per unit its exchanges with the teacher and its rows; what these cost, and an estimate for all units."""

    units: list[Unit]
    exchanges: dict[str, list[tuple[Ask, Reply]]]
    rows: list[TraceRow]
    measured: Estimate
    whole: Estimate


@dataclass
class _Recorder:
    """A family that notes what its generators ask and what is replied."""

    family: Family
    exchanges: dict[str, list[tuple[Ask, Reply]]] = field(default_factory=dict)

    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        noted = self.exchanges.setdefault(unit.id, [])
        steps = self.family.induce(unit, rng)
        try:
            asks = next(steps)
            while True:
                replies = yield asks
                noted += zip(asks, replies, strict=True)
                asks = steps.send(replies)
        except StopIteration as stop:
            return stop.value


def sampled(units: list[Unit], count: int) -> list[Unit]:
    """The first unit of each of at most `count` chunks, spread evenly over all of them."""
    first = list({unit.chunk.digest: unit for unit in reversed(units)}.values())[::-1]
    count = min(count, len(first))
    return [first[index * len(first) // count] for index in range(count)]


def preview(inducer: Inducer, units: list[Unit], generate: Generate, count: int) -> Preview:
    """Work on a few of `units` as induction would; nothing is stored."""
    chosen = sampled(units, count)
    recorder = _Recorder(inducer.family)
    started = time.perf_counter()
    rows = inducer.rows(chosen, generate, recorder)
    exchanges = [exchange for noted in recorder.exchanges.values() for exchange in noted]
    asked = [reply for _, reply in exchanges if not reply.is_too_long]
    kept = sum(row.drop_reason is None for row in rows)
    measured = Estimate(
        units=len(chosen),
        asks=len(asked),
        prompt_tokens=sum(reply.num_prompt_tokens for reply in asked),
        teacher_tokens=sum(row.teacher_tokens for row in rows),
        kept_rows=kept,
        dropped_rows=len(rows) - kept,
        trace_bytes=len(as_parquet(rows)),
        seconds=time.perf_counter() - started,
    )
    return Preview(chosen, recorder.exchanges, rows, measured, measured.scaled(len(units)))


def printed(shown: Preview, inducer: Inducer) -> str:
    """The preview as text for a terminal."""
    lines = []
    for number, unit in enumerate(shown.units, start=1):
        lines.append(f"== {inducer.task.family}, chunk {number} of {len(shown.units)}, unit {unit.id[:12]}")
        seen: list[Message] = []
        for ask, reply in shown.exchanges[unit.id]:
            lines += [_message(message, message in seen) for message in ask.messages]
            seen += ask.messages
            cut = {"length": " (cut)", TOO_LONG: " (not asked: too long for the context)"}.get(reply.finish_reason, "")
            heading = f"reply, {reply.num_prompt_tokens} → {len(reply.token_ids)} tokens{cut}"
            lines.append(_block(heading, reply.text))
        lines += [_trace(row, inducer) for row in shown.rows if row.unit == unit.id]
    lines.append(
        f"== {inducer.task.family}: cost\n{_cost_words(shown.measured, 'measured')}\n{_cost_words(shown.whole, 'estimated')}"
    )
    lines.append("   (the rate is that of this few requests at once; more at once are faster)")
    return "\n".join(lines)


def _trace(row: TraceRow, inducer: Inducer) -> str:
    if row.drop_reason is not None:
        return f"-- trace: dropped, {row.drop_reason}"
    heading = f"trace, {len(row.token_ids)} tokens, {int(row.is_target.sum())} of them targets"
    if len(row.scores):
        heading += f", candidates scored {', '.join(f'{score:.3f}' for score in row.scores)}"
    return _block(heading, inducer.text.decode(row.token_ids.tolist()))


def _message(message: Message, is_known: bool) -> str:
    """A message of an ask; one that was shown already as its first words."""
    heading = f"ask, {message['role']}"
    return f"-- {heading}, as above: {message['content'][:60]!r}" if is_known else _block(heading, message["content"])


def _block(heading: str, text: str) -> str:
    """Under its heading a text of the source's or the teacher's, which must not steer the terminal."""
    shown = visible(_clipped(text.strip())).replace("\r", "\\r")
    return f"-- {heading}\n{textwrap.indent(shown, '   ')}"


def _clipped(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    half = _SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"


def _cost_words(cost: Estimate, word: str) -> str:
    return (
        f"   {word:<9} {cost.units} units, {cost.asks} asks: {cost.prompt_tokens:,} prompt tokens, {cost.teacher_tokens:,} "
        f"teacher tokens, {cost.kept_rows} traces and {cost.dropped_rows} dropped, {cost.trace_bytes / 1e6:.2f} MB, "
        f"{cost.seconds:.1f} s"
    )
