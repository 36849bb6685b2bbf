"""Short answers: a reply passes when an accepted form occurs in it, both normalised."""

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpc_ray.config.loading import Strict
from lpc_ray.errors import DataError
from lpc_ray.model.thinking import said, spoken
from lpc_ray.records import Ask, Case
from lpc_ray.sources.text import read_rows
from lpc_ray.verification.base import Benchmark, Examination, judged, rows_of

SCORER = "short_answer/4"
_ARTICLES = {"a", "an", "the"}
_MONEY_AFTER_MINUS = re.compile(r"(?<=[-−])[$€£](?=\d)")
# Marks belong to the letter before them. Where a script puts no space between words, each letter is a word of its own.
_MARKS = "".join(char for char in map(chr, range(0x300, 0x20000)) if unicodedata.category(char) in ("Mn", "Mc"))
_UNSPACED = (
    "\u0e01-\u0edf\u1000-\u109f\u1780-\u17d3\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
)
_LETTERS = rf"(?:(?![{_UNSPACED}])[^\W_][{_MARKS}]*)+"
_WORD = re.compile(
    rf"%|[{_UNSPACED}][{_MARKS}]*"
    rf"|(?:(?<!\w)[-−](?=\d))?{_LETTERS}(?:(?<=\d)[.:,](?=\d){_LETTERS})*(?:(?<!\d)(?:\+{{2,}}|[+#](?!\w)))?"
)


def normalise(text: str) -> list[str]:
    """Case, width, articles, punctuation and invisible characters removed. Returns words.

    `.`, `:` and `,` between digits stay, and so do a number's minus and the sign that ends a word such as C++ or C#; `%` is
    a word, and so is each letter of a script that puts no space between words.
    """
    return [word for word in _words(_folded(text)) if word not in _ARTICLES]


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _words(text: str) -> list[str]:
    visible = "".join(char for char in unicodedata.normalize("NFKC", text) if unicodedata.category(char) != "Cf")
    return [word.replace("−", "-") for word in _WORD.findall(_MONEY_AFTER_MINUS.sub("", visible))]


def is_answered(reply: str, answers: tuple[str, ...]) -> bool:
    """Whether the words of an accepted form stand together, in order, in the reply, but for articles between them."""
    said, forms = _words(_folded(spoken(reply))), [form for answer in answers if (form := _form(answer))]
    return any(_stands_at(start, form, said) for form in forms for start in range(len(said)))


def _form(answer: str) -> list[str]:
    """An answer's words without articles; at the end, or as a capital inside, an "A" names something."""
    words, cased = _words(_folded(answer)), _words(answer)
    last = len(words) - 1
    names = {number for number, word in enumerate(cased) if word == "A" and number > 0 and len(cased) == len(words)}
    return [word for number, word in enumerate(words) if word not in _ARTICLES or number == last or number in names]


def _stands_at(start: int, form: list[str], said: list[str]) -> bool:
    at = start
    for word in form:
        while at < len(said) and said[at] != word and said[at] in _ARTICLES and at > start:
            at += 1
        if at == len(said) or said[at] != word:
            return False
        at += 1
    return True


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
