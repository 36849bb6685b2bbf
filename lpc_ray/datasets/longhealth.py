"""LongHealth: patient records and five-option questions about them (arXiv 2401.14490).

Upstream is one JSON object, patient id → patient; an object that is itself one patient is read too.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpc_ray.errors import DataError
from lpc_ray.textfile import parse_json, read_text

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

    Raises: DataError naming patient and question, for a missing field or a correct text that is not exactly one option.
    """
    raw = parse_json(read_text(path, "longhealth"), f"longhealth {path}")
    if not isinstance(raw, dict) or not raw:
        raise DataError(f"longhealth {path}: wanted an object of patients")
    if "questions" in raw:
        raw = {str(raw.get("patient_id", path.stem)): raw}
    return {name: _patient(name, told, where=f"longhealth {path} {name}") for name, told in raw.items()}


def _patient(name: str, raw: Any, where: str) -> Patient:
    try:
        texts = raw.get("texts", {})
        return Patient(
            id=name,
            name=str(raw["name"]),
            texts=tuple(str(texts[key]) for key in sorted(texts, key=_number)),
            questions=tuple(_question(question, where) for question in raw["questions"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{where}: not a patient: {type(error).__name__}: {error}") from error


def _number(key: str) -> int:
    return int(key.rpartition("_")[2])


def _question(raw: dict[str, Any], where: str) -> Question:
    options = tuple(str(raw[f"answer_{letter.lower()}"]).strip() for letter in LETTERS)
    correct = str(raw["correct"]).strip()
    if options.count(correct) != 1:
        raise DataError(
            f"{where} question {raw['No']}: got the correct text {correct!r}, wanted exactly one of {options}"
        )
    return Question(int(raw["No"]), str(raw["question"]).strip(), options, LETTERS[options.index(correct)])


def prompt(question: Question) -> str:
    """The question as it is asked: options A to E, and the form of the answer."""
    options = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, question.options, strict=True))
    return f"{question.text}\n\n{options}\n\nGive the letter of the one correct option in tags: <answer>letter</answer>"
