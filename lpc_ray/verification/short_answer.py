"""Short answers: a reply passes when an accepted form occurs in it, both normalised."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpc_ray.config.loading import Strict
from lpc_ray.errors import DataError
from lpc_ray.model.thinking import said, spoken
from lpc_ray.records import Ask, Case
from lpc_ray.sources.text import read_rows
from lpc_ray.sources.words import Word, words
from lpc_ray.verification.base import Benchmark, Examination, judged, rows_of

SCORER = "short_answer/4"
_ARTICLES = {"a", "an", "the"}


def normalise(text: str) -> list[str]:
    """The words of a text (`lpc_ray.sources.words`) without articles."""
    return [word.text for word in words(text) if word.text not in _ARTICLES]


def is_answered(reply: str, answers: tuple[str, ...]) -> bool:
    """Whether the words of an accepted form stand together, in order, in what the reply says, but for articles between them.

    In a script without spaces they also begin and end where a word of the reply does.
    """
    said, forms = words(spoken(reply)), [form for answer in answers if (form := _form(answer))]
    return any(_stands_at(start, form, said) for form in forms for start in range(len(said)))


def _form(answer: str) -> list[str]:
    """An answer's words without articles; at the end, or as a capital inside, an "A" names something."""
    found = words(answer)
    last = len(found) - 1
    return [
        word.text
        for number, word in enumerate(found)
        if word.text not in _ARTICLES or number == last or (word.raw == "A" and number > 0)
    ]


def _stands_at(start: int, form: list[str], said: list[Word]) -> bool:
    at = start
    for word in form:
        while at < len(said) and said[at].text != word and said[at].text in _ARTICLES and at > start:
            at += 1
        if at == len(said) or said[at].text != word:
            return False
        at += 1
    return said[start].begins and said[at - 1].ends


class Settings(Strict):
    """The cases file says it all."""


@dataclass(frozen=True)
class ShortAnswer(Benchmark):
    cases: tuple[Case, ...]

    def identity(self) -> list[Any]:
        return [SCORER, rows_of(self.cases)]

    def examine(self, case: Case, ask: Ask) -> Examination:
        [reply] = yield [ask]
        return judged(is_answered(said(reply), case.answers))


def load(path: Path, settings: Settings) -> ShortAnswer:
    return ShortAnswer(tuple(read_cases(path)))


def read_cases(path: Path) -> list[Case]:
    """The cases of a JSONL file: id, question, answers, split.

    Raises: DataError naming the line, for a missing or empty field, an unknown split, an answer without any word, or an
    id or question that occurs twice.
    """
    cases: list[Case] = []
    seen = DistinctCases(f"cases {path} ")
    for where, row in read_rows(path, "cases"):
        case = _case(row, where)
        seen.add(case, where)
        cases.append(case)
    for split in ("tune", "held_out"):
        if not any(case.split == split for case in cases):
            raise DataError(f"cases {path}: got no case of split {split}, wanted at least one")
    return cases


class DistinctCases:
    """The ids and questions of a file, each wanted once. file: how its lines' places begin."""

    def __init__(self, file: str):
        self.file = file
        self.seen: dict[str, str] = {}

    def add(self, case: Case, where: str) -> None:
        """Raises: DataError for an id or a question, normalised, that was there before."""
        shown_as = {f"id {case.id}": f"id {case.id!r}"}
        shown_as[f"question {' '.join(normalise(case.question))}"] = f"question {case.question!r}"
        for key, shown in shown_as.items():
            if key in self.seen:
                raise DataError(f"{where}: got {shown} again (first on {self.seen[key]})")
            self.seen[key] = where.removeprefix(self.file)


def _case(row: dict[str, Any], where: str) -> Case:
    for field in ("id", "question", "answers", "split"):
        if not row.get(field):
            raise DataError(f"{where}: field {field!r} is missing or empty")
    answers = row["answers"]
    if not isinstance(answers, list) or not all(isinstance(answer, str) and normalise(answer) for answer in answers):
        raise DataError(f"{where}: field 'answers' must be a list of texts with at least one word each")
    if row["split"] not in ("tune", "held_out"):
        raise DataError(f"{where}: got split {row['split']!r}, wanted tune or held_out")
    if not isinstance(row["id"], str) or not isinstance(row["question"], str):
        raise DataError(f"{where}: fields 'id' and 'question' must be texts")
    return Case(id=row["id"], question=row["question"], answers=tuple(answers), split=row["split"])
