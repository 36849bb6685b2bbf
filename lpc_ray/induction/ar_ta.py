"""`ar_ta`: task-agnostic Active Reading. The model lists ways to study a chunk, then each is carried out on its own.

Source: Active Reading, arXiv 2508.09494, section 3. Prompts are our own words.
"""

import random
import re
from typing import Annotated

from pydantic import Field

from lpc_ray.config.recipe import MOST
from lpc_ray.induction.base import ASK_TOO_LONG, Steps, Unit
from lpc_ray.induction.study import StudyFamily, read_prompts, system_message, taught, user
from lpc_ray.model.thinking import said
from lpc_ray.records import TOP_K, Ask, Decoding, Reply, Trace

PROMPTS = read_prompts("ar_ta")
_NUMBER = re.compile(r"^\**\d+[.)]\**\s*")
_OPENINGS = (r"#{2,4}\s+", r"\**\d+[.)]\**\s+", r"[-*•]\s+")
_FENCE = re.compile(r"^[ \t]*```.*$", re.MULTILINE)


class ActiveReading(StudyFamily):
    """Stage 1 lists at most `max_strategies` strategies, sampled at `temperature`; stage 2 carries each out greedily.

    A unit of work is one list. A list without an entry is one dropped row; so is each entry that was cut, repeats another
    or is longer than `max_strategy_words`. Stage 2 sees the chunk and one strategy, and nothing else of stage 1.
    """

    temperature: Annotated[float, Field(ge=0, le=100)] = 0.6
    max_strategies: Annotated[int, Field(ge=1, le=1000)] = 8
    max_strategy_words: Annotated[int, Field(ge=1, le=1_000_000)] = 120
    max_list_tokens: Annotated[int, Field(ge=1, le=MOST)] = 1024

    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        [template], [apply] = PROMPTS["system"], PROMPTS["apply"]
        system = system_message(template, unit.chunk)
        decoding = Decoding(self.temperature, self.max_list_tokens, seed=rng.getrandbits(31))
        [listed] = yield [Ask((system, user(self.request())), decoding)]
        if listed.is_too_long:
            return [Trace(drop_reason=ASK_TOO_LONG)]
        strategies, dropped = self.strategies_in(listed)
        if not strategies:
            return dropped
        subject = unit.chunk.description.strip().rstrip(".") or "the text"
        turns = [user(apply.format(subject=subject, strategy=strategy)) for strategy in strategies]
        decoding = Decoding(max_tokens=self.max_answer_tokens)
        replies = yield [Ask((system, turn), decoding, top_k=TOP_K) for turn in turns]
        return [taught([system], [turn], reply) for turn, reply in zip(turns, replies, strict=True)] + dropped

    def request(self) -> str:
        """What stage 1 is asked."""
        [wording] = PROMPTS["strategies"]
        return wording.format(count=self.max_strategies)

    def strategies_in(self, listed: Reply) -> tuple[list[str], list[Trace]]:
        """The usable strategies of stage 1's reply, in its order, and a dropped trace for each that is not."""
        entries = entries_of(self.list_in(said(listed)))
        is_cut = listed.finish_reason == "length"
        usable: list[str] = []
        dropped: list[Trace] = []
        for number, entry in enumerate(entries, start=1):
            if len(usable) == self.max_strategies:
                break
            if is_cut and number == len(entries):
                dropped.append(Trace(drop_reason="strategy_cut"))
            elif _folded(entry) in map(_folded, usable):
                dropped.append(Trace(drop_reason="duplicate_strategy"))
            elif len(entry.split()) > self.max_strategy_words:
                dropped.append(Trace(drop_reason="strategy_too_long"))
            else:
                usable.append(entry)
        return usable, dropped if entries else [Trace(drop_reason="no_strategy")]

    def list_in(self, text: str) -> str:
        """The part of stage 1's reply that holds the strategies."""
        return text


def entries_of(text: str) -> list[str]:
    """The entries of a Markdown list: headings with what is below them, else numbers, else bullets.

    A single heading or number may stand over the list itself. Fences of code and a whole entry's bold type are left out.
    """
    text, found = _FENCE.sub("", text), []
    for opening in _OPENINGS:
        pieces = re.split(rf"^[ \t]*{opening}", text, flags=re.MULTILINE)[1:]
        entries = [_plain(piece) for piece in pieces if any(map(str.isalpha, piece))]
        if len(entries) > 1:
            return entries
        found = found or entries
    return found


def _plain(piece: str) -> str:
    entry = _NUMBER.sub("", piece.strip())
    return entry.removesuffix("**").strip() if entry.count("**") == 1 else entry


def _folded(entry: str) -> str:
    return " ".join(entry.casefold().split())


FAMILY = ActiveReading
