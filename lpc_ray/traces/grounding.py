"""A grounding audit: what a text states that its source does not hold.

It compares strings, so it misses wrong statements made of the source's own words and flags right ones in other words: a
figure to compare trace sets by, not a verdict on a trace.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from lpc_ray.sources.words import words

_DIGIT = re.compile(r"\d")
_QUOTED = re.compile(r"\"([^\"\n]{2,80})\"|“([^”\n]{2,80})”|«([^»\n]{2,80})»|`([^`\n]{2,80})`")
_CAPITALISED = r"[^\W\d_a-z][\w’'-]*[a-z][\w’'-]*"
_NAME = re.compile(rf"(?<![\w’'-]){_CAPITALISED}(?: {_CAPITALISED})*")
_SENTENCE_START = re.compile(r"(?:^|[.!?:;\n])[\s\"“«(*#>\d.)-]*$")
_OPENERS = frozenset(
    re.findall(
        r"\w+",
        "a after all an and are as ask at before both but by can did do does each every for from has have he her his how i if "
        "in is it its many my no not of on or our she so some that the their then there these they this those to was we were "
        "what when where which who why will with yes you your",
    )
)


@dataclass(frozen=True, slots=True)
class Claims:
    """What of a text can be looked up: numbers, names of people and places, quoted strings; each once, in order."""

    numbers: tuple[str, ...]
    names: tuple[str, ...]
    quotes: tuple[str, ...]


def claims(text: str) -> Claims:
    """Names are runs of capitalised words; one that only opens a sentence is none, nor is a function word before one."""
    names = []
    for match in _NAME.finditer(text):
        run = match[0].split(" ")
        if _SENTENCE_START.search(text[max(0, match.start() - 40) : match.start()]):
            run = run[1:] if len(run) == 1 or run[0].lower() in _OPENERS else run
        if run:
            names.append(re.sub(r"[’']s?$", "", " ".join(run)))
    quotes = [next(group for group in match.groups() if group) for match in _QUOTED.finditer(text)]
    numbers = [word.raw for word in words(text) if word.is_amount and _DIGIT.search(word.raw)]
    return Claims(_once(numbers), _once(names), _once(quotes))


def absent(stated: Claims, source: str) -> Claims:
    """Those of `stated` that `source` does not hold: numbers as numbers (1,000 is 1000), the rest as text, case and spacing
    aside.
    """
    numbers, folded = _numbers(source), _folded(source)
    return Claims(
        tuple(number for number in stated.numbers if numbers.isdisjoint(word.text for word in words(number))),
        tuple(name for name in stated.names if _folded(name) not in folded),
        tuple(quote for quote in stated.quotes if _folded(quote) not in folded),
    )


@lru_cache(maxsize=4)
def _numbers(source: str) -> frozenset[str]:
    """Every amount of a source, in its sentence and by itself, and the parts of dates and ranges."""
    found = [word for word in words(source) if word.is_amount]
    amounts = [amount.text for word in found for amount in (word, *words(word.raw))]
    return frozenset(part for amount in amounts for part in (amount, *amount.removeprefix("-").split("-")))


@lru_cache(maxsize=4)
def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _once(found: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found))
