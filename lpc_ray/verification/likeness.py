"""How like a passage of a text is to a question: the question itself, nearly, or doubtfully.

exact: its words in their order, asked there, not merely said; near: but for spelling and small words; pair: but for one word,
and an accepted answer follows; doubtful: most of its words, in a passage that asks. A sentence that states the fact which a
question asks for is none of these.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, get_args

from lpc_ray.verification.short_answer import is_answered

Kind = Literal["exact", "near", "pair", "doubtful"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SHORT = 4  # words; a question of fewer is one only where a question mark follows
_PLAIN, _LONG = 8, 16  # words that nobody says in this order by chance; words of which some may differ
_MOST, _NEARLY_ALL, _ALIKE = 0.8, 0.9, 0.75
_SMALL_WORDS = """
    a an the of in on at to for from by with as is are was were be been do does did has have had it its this that these those
    there and or your our their his her please
"""
_ASKING_WORDS = """
    who whom whose what which when where why how is are was were do does did can could will would should has have may must
"""
_SMALL, _ASKING = frozenset(_SMALL_WORDS.split()), frozenset(_ASKING_WORDS.split())
_ASKS = re.compile(r"[^.!?？。\n]{0,80}?[?？]")
_MARK = re.compile(r"[\"'”’)*_\s]{0,3}[?？]")
_BEFORE = re.compile(r"(?:^|[\n.!?？。:;|,>\"“”'(\[{*_–—-]|\b[qa]\d*\.?)[\s*_#\"“'(>-]*$")
_AFTER = re.compile(r"[\s*_\"”')\]}]*(?:$|[\n?？.!。|;:,<])")


@dataclass(frozen=True, slots=True)
class Compared:
    """first, last: the passage's words between which the question's lie. share: of the question's words, those there in order.

    missing, extra: the question's other words, and the passage's between first and last, but for other spellings.
    """

    words: int
    first: int
    last: int
    share: float
    missing: tuple[str, ...]
    extra: tuple[str, ...]


def compare(question: Sequence[str], passage: Sequence[str]) -> Compared | None:
    """None when they share less than half of the question's words."""
    matcher = SequenceMatcher(None, question, passage, autojunk=False)
    blocks = [block for block in matcher.get_matching_blocks() if block.size]
    shared = sum(block.size for block in blocks)
    if 2 * shared < len(question):
        return None
    first, last = blocks[0].b, blocks[-1].b + blocks[-1].size - 1
    missing: list[str] = []
    extra: list[str] = []
    alike = 0
    for kind, a, to_a, b, to_b in matcher.get_opcodes():
        if kind == "equal":
            continue
        theirs = list(passage[max(b, first) : min(to_b, last + 1)])
        for word in question[a:to_a]:
            twin = next((other for other in theirs if _is_alike(word, other)), None)
            if twin is None:
                missing.append(word)
            else:
                theirs.remove(twin)
                alike += 1
        extra += theirs
    share = (shared + alike) / len(question)
    return Compared(len(question), first, last, share, tuple(missing), tuple(extra))


def _is_alike(one: str, other: str) -> bool:
    """Another spelling of a word; a number has none."""
    if min(len(one), len(other)) < SHORT or abs(len(one) - len(other)) > SHORT or any(map(str.isdigit, one + other)):
        return False
    return SequenceMatcher(None, one, other, autojunk=False).ratio() >= _ALIKE


def kind_of(question: str, answers: tuple[str, ...], found: Compared, before: str, after: str) -> Kind | None:
    """What the passage `found` is to `question`; before, after: the text around it, in small letters."""
    first_word = question.casefold().split(maxsplit=1)[:1]
    is_asking = "?" in question or "？" in question or bool(first_word) and first_word[0] in _ASKING
    is_asked = bool(_ASKS.match(after))
    stands_alone = bool(_BEFORE.search(before) and _AFTER.match(after))
    loose_missing, loose_extra = (
        [
            word
            for word in words
            if word not in _SMALL or (word in _ASKING and is_asking and side == "missing" and not is_asked)
        ]
        for side, words in (("missing", found.missing), ("extra", found.extra))
    )
    loose = len(loose_missing) + len(loose_extra)
    if found.words < SHORT:
        return "exact" if not found.missing and not found.extra and _MARK.match(after) else None
    is_question_there = is_asked or stands_alone or found.words >= (_PLAIN if is_asking else _LONG)
    if not found.missing and not found.extra:
        return "exact" if is_question_there else "doubtful" if is_asking else None
    if is_question_there and found.share >= _MOST and not loose:
        return "near"
    if found.words >= _LONG and found.share >= _NEARLY_ALL and loose <= found.words * (1 - _NEARLY_ALL):
        return "doubtful" if any(word.isdigit() for word in (*loose_missing, *loose_extra)) else "near"
    if is_asked and is_answered(_behind(after), answers):
        is_one_word_off = found.share >= _MOST and len(loose_missing) <= 1 and len(loose_extra) <= 1
        return "pair" if is_one_word_off else "doubtful"
    asks_alike = is_asked or found.words >= _LONG or not any(word in _ASKING for word in found.missing)
    is_close = found.words >= _LONG or found.share >= _NEARLY_ALL or (found.share >= _MOST and not loose_missing)
    return "doubtful" if is_asking and asks_alike and is_close else None


def _behind(after: str) -> str:
    """What stands where the answer to a question would: behind its mark, before the next question."""
    behind = re.split("[?？]", after, maxsplit=1)[-1]
    answer, *following = re.split("[?？]", behind, maxsplit=1)
    return answer[: answer.rfind("\n") + 1] if following else answer
