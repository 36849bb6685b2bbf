"""Short answers: a reply passes when an accepted form occurs in it, both normalised."""

import re
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

SCORER = "short_answer/5"
_ARTICLES = {"a", "an", "the"}
# What Korean writes at the end of a word to say its part in the sentence.
_PARTICLES = re.compile(
    "은|는|이|가|을|를|에|의|와|과|도|만|로|으로|에서|에게|께|한테|부터|까지|처럼|보다|이나|나|에는|에도|에서는|에서도|으로는|로는|이며|며|이고|고|"
    "인|인데|이라고|라고|이라는|라는|이다|다|입니다|이에요|예요|이었다|였다|이었습니다|였습니다|이요|요"
)
_HANGUL = re.compile(r"[가-힣]$")


def normalise(text: str) -> list[str]:
    """The words of a text (`lpc_ray.sources.words`) without articles."""
    return [word.text for word in words(text) if word.text not in _ARTICLES]


def is_answered(reply: str, answers: tuple[str, ...]) -> bool:
    """Whether the words of an accepted form stand together, in order, in what the reply says, but for articles between them.

    In a script without spaces, and in a chain of hyphens, they also begin and end where a word of the reply does; a Korean
    one may end in a particle.
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
    for number, word in enumerate(form):
        while at < len(said) and said[at].text != word and said[at].text in _ARTICLES and at > start:
            at += 1
        is_last = number == len(form) - 1
        if at == len(said) or not (said[at].text == word or is_last and _is_marked(said[at].text, word)):
            return False
        at += 1
    return said[start].begins and said[at - 1].ends


def _is_marked(said: str, word: str) -> bool:
    """Whether `said` is a Korean `word` with a particle or a copula at its end."""
    is_longer = said.startswith(word) and _HANGUL.search(word)
    return bool(is_longer) and _PARTICLES.fullmatch(said[len(word) :]) is not None


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
