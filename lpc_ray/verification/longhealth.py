"""LongHealth: one option of five, in `<answer>` tags.

Strict: the last tag must hold the right option's letter or text; a missing tag is wrong. `lenient` also reads a letter or
an option's text outside tags, where exactly one is named. Nothing is ever read as option A for want of an answer.
"""

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from lpc_ray.datasets.longhealth import LETTERS, Patient, prompt, read_patients
from lpc_ray.errors import DataError
from lpc_ray.records import Ask, Case, digest_of
from lpc_ray.verification.base import Benchmark, Examination, judged, rows_of

SCORER = "longhealth/1"
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_LETTER = re.compile(r"\(?([A-E])\)?(?:[.:)].*)?", re.DOTALL)
_NAMED = re.compile(r"\b(?:answer|option)(?:\s+is)?\s*:?\s*\(?([A-E])\b", re.IGNORECASE)


class Settings(BaseModel):
    """`patients`: ids, all of the file's when empty. `num_tune`: of each patient's questions, drawn by `seed`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    patients: tuple[str, ...] = ()
    num_tune: Annotated[int, Field(ge=1)] = 10
    seed: int = 0


@dataclass(frozen=True)
class LongHealth(Benchmark):
    """A case's first answer is the right letter; the five option texts follow."""

    cases: tuple[Case, ...]

    def identity(self) -> list[Any]:
        return [SCORER, rows_of(self.cases)]

    def examine(self, case: Case, ask: Ask) -> Examination:
        reply = yield ask
        correct, *options = case.answers
        tagged = tagged_letter(reply.text, options)
        return judged(
            tagged == correct,
            lenient=float((tagged or untagged_letter(reply.text, options)) == correct),
            tagged=float(tagged is not None),
            cap_hit=float(reply.finish_reason == "length"),
        )


def tagged_letter(reply: str, options: list[str]) -> str | None:
    """The option that the last pair of answer tags holds; None where there is none or it holds no option."""
    tags = _TAG.findall(reply)
    if not tags:
        return None
    said = tags[-1].strip()
    if said.casefold() in (texts := [option.casefold() for option in options]):
        return LETTERS[texts.index(said.casefold())]
    letter = _LETTER.fullmatch(said.removeprefix("Option ").removeprefix("option "))
    return letter[1] if letter else None


def untagged_letter(reply: str, options: list[str]) -> str | None:
    """The one option that a reply without tags names, by `answer: B` or by its text; None for several or none."""
    named = {letter.upper() for letter in _NAMED.findall(reply)}
    alone = _LETTER.fullmatch(reply.strip())
    if alone:
        named.add(alone[1])
    if not named:
        named = {letter for letter, text in zip(LETTERS, options, strict=True) if text.casefold() in reply.casefold()}
    return named.pop() if len(named) == 1 else None


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
