"""LongHealth: one option of five, in `<answer>` tags.

Strict: the last tag must hold the right option's letter or text; a missing tag is wrong. `lenient` also reads a letter or
an option's text outside tags, where exactly one is named. Nothing is ever read as option A for want of an answer.
"""

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from lpc_ray.config.loading import Distinct, Strict
from lpc_ray.config.recipe import MOST, Seed
from lpc_ray.errors import DataError
from lpc_ray.model.thinking import said
from lpc_ray.records import Ask, Case, digest_of
from lpc_ray.sources.longhealth import LETTERS, Patient, prompt, question_of, read_patients
from lpc_ray.verification.base import Benchmark, Examination, judged, rows_of

SCORER = "longhealth/3"
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_MARKUP = str.maketrans("", "", '*`_"“”')
_LEAD = r"(?:(?:the|correct|answer|option|letter|choice|is)\b[\s:]*)*"
_LETTER = re.compile(
    rf"{_LEAD}[(\[]?([A-E])(?:[)\].:,;!]*|(?:[)\].:,;]+|\s+[-–—]\s|\s*\n)(?P<text>.+)|\s+(?P<own>.+))",
    re.DOTALL | re.IGNORECASE,
)
_CAPITAL = re.compile(r"\b[A-E]\b")
# Around the letter of "answer: B", from left to right: what turns the naming round, the nouns, a second letter beside it, and
# what sets a letter apart from a word.
_DENIED = r"\b(?:neither|nor|not|never|than|except|exclude|eliminate|rule out)\s+|n[’']t\s+"
_NOUNS = r"\b(?:answer|(?P<noun>option|letter|choice))(?:\s+(?:is|(?P<apposed>option|letter|choice)))*(?:\s*:)?"
_BESIDE = r"[)\]]?(?:\s+(?:or|and)\s+|/)(?:option\s+)?[(\[]?(?-i:(?P<other>[A-E]))\b"
_ALONE = r"[)\].:,;!?]+(?=\s|\Z)|\s*(?=\n|\Z)"
_REFUSED = r"\)?\s+(?:(?:is|was)(?:n[’']t|\s+(?:not|wrong|incorrect|false|ruled))|can(?:not|[’']t|\s+be\s+ruled))"
_ARTICLE = r"\s+(?!(?:is|was|as|and|or|nor|because|since|for|with)\b)(?-i:[a-z])"
_NAMED = re.compile(
    rf"(?P<denied>{_DENIED})?(?:the\s+)?{_NOUNS}\s*[(\[]?(?P<letter>[A-E])\b(?!-\w)(?=(?:{_BESIDE})?)"
    rf"(?P<alone>{_ALONE})?(?P<refused>{_REFUSED})?(?P<article>{_ARTICLE})?",
    re.IGNORECASE,
)


class Settings(Strict):
    """`patients`: ids, all of the file's when empty. `num_tune`: of each patient's questions, drawn by `seed`."""

    patients: Annotated[tuple[str, ...], Distinct] = ()
    num_tune: Annotated[int, Field(ge=1, le=MOST)] = 10
    seed: Seed = 0


@dataclass(frozen=True)
class LongHealth(Benchmark):
    """A case's first answer is the right letter; the five option texts follow."""

    cases: tuple[Case, ...]

    def identity(self) -> list[Any]:
        return [SCORER, rows_of(self.cases)]

    def asked(self, case: Case) -> str:
        return question_of(case.question)

    def examine(self, case: Case, ask: Ask) -> Examination:
        [reply] = yield [ask]
        correct, *options = case.answers
        text = said(reply)
        tagged = tagged_letter(text, options)
        return judged(
            tagged == correct,
            lenient=float((tagged or untagged_letter(text, options)) == correct),
            tagged=float(tagged is not None),
            cap_hit=float(reply.finish_reason == "length"),
        )


def tagged_letter(reply: str, options: list[str]) -> str | None:
    """The option that the last pair of answer tags holds; None where there is none or it holds no option."""
    said = start = None
    for tag in _TAG.finditer(reply):
        if not tag[1]:
            start = tag.end()
        elif start is not None:
            said, start = reply[start : tag.start()], None
    return None if said is None else _option(said, options)


def _option(said: str, options: list[str]) -> str | None:
    """The option that a text is: by its own text, or by its letter. What follows a letter may be the option's own text, or
    any that names no other letter.
    """
    plain = said.translate(_MARKUP).strip()
    texts = [_bare(option) for option in options]
    if _bare(plain) in texts:
        return LETTERS[texts.index(_bare(plain))]
    found = _LETTER.fullmatch(plain)
    if found is None:
        return None
    letter = found[1].upper()
    rest = found["text"] or found["own"]
    if rest is None or _bare(rest) == texts[LETTERS.index(letter)]:
        return letter
    return letter if found["own"] is None and set(_CAPITAL.findall(rest)) <= {letter} else None


def _bare(text: str) -> str:
    return text.translate(_MARKUP).strip(" \t\r\n.").casefold()


def untagged_letter(reply: str, options: list[str]) -> str | None:
    """The one option that a reply without tags names, by `answer: B` or by its text; None for several or none."""
    plain = reply.translate(_MARKUP)
    counted = [found for found in _NAMED.finditer(plain) if _is_named(found)]
    named = {letter.upper() for found in counted for letter in found.group("letter", "other") if letter}
    alone = _option(plain, options)
    if alone:
        named.add(alone)
    if not named:
        folded = plain.casefold()
        named = {letter for letter, text in zip(LETTERS, options, strict=True) if _stands_in(_bare(text), folded)}
    return named.pop() if len(named) == 1 else None


def _is_named(found: re.Match[str]) -> bool:
    """A small letter counts where nothing but punctuation follows; "answer: A fracture" begins with an article."""
    if found["denied"] or found["refused"]:
        return False
    if found["letter"].islower():
        return found["alone"] is not None
    is_article = found["letter"] == "A" and not (found["noun"] or found["apposed"]) and found["article"]
    return not is_article


def _stands_in(text: str, reply: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", reply) is not None


def load(path: Path, settings: Settings) -> LongHealth:
    """Raises: DataError for a patient that the file lacks, or one whose questions `num_tune` would use up."""
    known = read_patients(path)
    absent = [name for name in settings.patients if name not in known]
    if absent:
        raise DataError(f"longhealth {path}: got patient {absent[0]!r}, wanted one of {', '.join(known)}")
    chosen = [known[name] for name in settings.patients or known]
    return LongHealth(tuple(case for patient in chosen for case in _cases(patient, settings)))


def _cases(patient: Patient, settings: Settings) -> list[Case]:
    numbers = list(range(len(patient.questions)))
    if len(numbers) <= settings.num_tune:
        raise DataError(
            f"longhealth {patient.id}: got {len(numbers)} questions, wanted more than num_tune = {settings.num_tune}"
        )
    random.Random(digest_of("longhealth", patient.id, settings.seed)).shuffle(numbers)
    tune = set(numbers[: settings.num_tune])
    return [
        Case(
            id=f"{patient.id}-q{question.number:02d}",
            question=prompt(question),
            answers=(question.correct, *question.options),
            split="tune" if position in tune else "held_out",
        )
        for position, question in enumerate(patient.questions)
    ]
