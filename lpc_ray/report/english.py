"""Counts that agree with their noun, and lists, as English writes them."""

from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """`1 case`, `2 cases`; for nouns whose plural takes an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
