"""LongHealth: patient records and five-option questions about them (arXiv 2401.14490).

Upstream is one JSON object, patient id → patient; an object that is itself one patient is read too.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpc_ray.errors import DataError
from lpc_ray.sources.text import parse_json, read_text

LETTERS = "ABCDE"


@dataclass(frozen=True, slots=True)
class Question:
    """`options`: the texts of A to E. `correct`: the letter."""

    number: int
    text: str
    options: tuple[str, ...]
    correct: str


@dataclass(frozen=True, slots=True)
class Patient:
    """`texts`: the notes of the record, in order; may be empty where a file holds questions only."""

    id: str
    name: str
    texts: tuple[str, ...]
    questions: tuple[Question, ...]

    @property
    def record(self) -> str:
        return "\n\n".join(self.texts)


def read_patients(path: Path) -> dict[str, Patient]:
    """Patient id → patient, in the file's order.

    Raises: DataError naming patient and question, for a missing or malformed field, a correct text that is not exactly one
    option, or a question that occurs twice in a patient.
    """
    raw = parse_json(read_text(path, "longhealth"), f"longhealth {path}")
    if not isinstance(raw, dict) or not raw:
        raise DataError(f"longhealth {path}: got {_kind(raw)}, wanted an object of patients")
    if "questions" in raw:
        raw = {str(raw.get("patient_id", path.stem)): raw}
    return {name: _patient(name, record, where=f"longhealth {path} {name}") for name, record in raw.items()}


def _patient(name: str, raw: Any, where: str) -> Patient:
    if not isinstance(raw, dict):
        raise DataError(f"{where}: got {_kind(raw)}, wanted a patient: an object with name, texts and questions")
    texts, questions = raw.get("texts", {}), raw.get("questions")
    if not isinstance(texts, dict):
        raise DataError(f"{where} texts: got {_kind(texts)}, wanted an object of notes")
    if not isinstance(questions, list):
        raise DataError(f"{where} questions: got {_kind(questions)}, wanted a list")
    order = sorted(texts, key=lambda key: _number(key, where))
    found = [_question(question, f"{where} question {place}") for place, question in enumerate(questions, start=1)]
    _check_distinct(found, where)
    return Patient(
        id=name,
        name=_text(raw, "name", where),
        texts=tuple(_text(texts, key, f"{where} texts") for key in order),
        questions=tuple(found),
    )


def _number(key: str, where: str) -> int:
    """The place of a note, which its key ends in."""
    digits = key.rpartition("_")[2]
    if not digits.isdecimal():
        raise DataError(f"{where} texts: got key {key!r}, wanted keys such as text_0")
    return int(digits)


def _question(raw: Any, where: str) -> Question:
    """where: says which of the patient's questions it is, from 1; the error of one with a number says that as well."""
    if not isinstance(raw, dict):
        raise DataError(
            f"{where}: got {_kind(raw)}, wanted an object with No, question, answer_a to answer_e and correct"
        )
    number = raw.get("No")
    if isinstance(number, bool) or not isinstance(number, int | str) or not str(number).isdecimal():
        raise DataError(f"{where} No: got {_kind(number)}, wanted a whole number")
    where = f"{where} (No {number})"
    options = tuple(_text(raw, f"answer_{letter.lower()}", where).strip() for letter in LETTERS)
    correct = _text(raw, "correct", where).strip()
    if options.count(correct) != 1:
        raise DataError(f"{where}: got the correct text {correct!r}, wanted exactly one of {options}")
    return Question(int(number), _text(raw, "question", where).strip(), options, LETTERS[options.index(correct)])


def _text(raw: dict[str, Any], field: str, where: str) -> str:
    """A text that is not empty, or a number as one."""
    value = raw.get(field)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise DataError(f"{where} {field}: got {_kind(value)}, wanted a text that is not empty")
    return str(value)


def _kind(value: Any) -> str:
    """What a value of a JSON file is, in words."""
    if value is None or isinstance(value, dict | list):
        return {dict: "an object", list: "a list"}.get(type(value), "nothing")
    return repr(value)


def _check_distinct(questions: list[Question], where: str) -> None:
    seen: dict[str, int] = {}
    for place, question in enumerate(questions, start=1):
        for mark in (f"No {question.number}", f"the text {' '.join(question.text.split()).casefold()!r}"):
            first = seen.setdefault(mark, place)
            if first != place:
                raise DataError(
                    f"{where} question {place}: got {mark} again (first in question {first}), wanted each once"
                )


def prompt(question: Question) -> str:
    """The question as it is asked: options A to E, and the form of the answer."""
    options = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, question.options, strict=True))
    return f"{question.text}\n\n{options}\n\nGive the letter of the one correct option in tags: <answer>letter</answer>"


def question_of(prompt: str) -> str:
    """The question in a prompt, without its options."""
    return prompt.rsplit("\n\n", 2)[0]
