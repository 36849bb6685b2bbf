"""GSM8K: grade-school word problems with worked solutions (arXiv 2110.14168). JSONL, keys `question` and `answer`."""

import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from lpc_ray.errors import DataError
from lpc_ray.records import Message
from lpc_ray.sources.text import read_rows

INSTRUCTION = "Reason step by step. End with a line that holds #### and the final number."
_CALCULATOR = re.compile(r"<<[^<>]*>>")
_DIGIT = r"\d¼-¾⅐-⅞↉"
_HAS_DIGIT = re.compile(f"[{_DIGIT}]")
_MARKER = re.compile(r"#{4,}")
_THOUSANDS = re.compile(r"(?<=\d)(?:[\u00a0\u202f\u2009]|\{,\}|\\,)(?=\d)")
_SPACED_GROUPS = re.compile(r"(?<![\d.,/:])\d{1,3}(?: \d{3})+(?!\d)")  # ambiguous: one number or several
_SPACED_OPERATOR = re.compile(r"(?<=\d)[ \t]*([-−–+*/×÷·x])[ \t]*(?=[$€£]?\d)")
_APART = re.compile(r"[\s=≈|]|(?<=[^\W\d_]):")
_AROUND = re.compile(r"[]()[{}<>*_`~#\"“”‘’\\]+")
_CHANGES_WHAT_FOLLOWS = re.compile(r"[-−^√]|sqrt")
_LETTER = f"[^\\W_{_DIGIT}²³¹⁰-⁹]"
_WHOLE = re.compile(
    rf"""(?:[A-Z]{{1,3}}(?=\$))?[$€£]?(?P<minus>[-−])?[$€£]?
    (?P<number>(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)
    (?P<exponent>[eE][-−+]?[0-9]{{1,3}})?
    (?:[%°$€£]|[-/]?{_LETTER}(?:{_LETTER}|[-/'.^]{_LETTER}|[²³])*)?[.,;:!?…]*""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """`solution`: the worked steps without the calculator's annotations, ending in `#### answer`."""

    question: str
    solution: str
    answer: Decimal


def read_problems(path: Path) -> list[Problem]:
    """The problems of a GSM8K file, in order.

    Raises: DataError naming the line, for anything but a question and an answer that ends in `#### N`.
    """
    return [problem(row, where) for where, row in read_rows(path, "gsm8k")]


def first_problems(path: Path, count: str) -> list[Problem]:
    """The first `count` problems of a file, for a source written `FILE#N`. Raises: DataError also when it has fewer."""
    problems = read_problems(path)
    if not count.isdecimal() or not 1 <= int(count) <= len(problems):
        raise DataError(f"gsm8k {path}: got {count!r} after #, wanted a number of problems from 1 to {len(problems)}")
    return problems[: int(count)]


def problem(row: dict[str, Any], where: str) -> Problem:
    """The problem in one JSON object. Raises: DataError."""
    fields = [row.get(name) for name in ("question", "answer")]
    if not all(isinstance(field, str) and field.strip() for field in fields):
        raise DataError(f"{where}: wanted 'question' and 'answer', texts that are not empty")
    question, solution = (str(field).strip() for field in fields)
    answer = marked_number(solution)
    if answer is None:
        raise DataError(f"{where}: got an answer that does not end in '#### N'")
    return Problem(question, _CALCULATOR.sub("", solution), answer)


def conversation(problem: Problem) -> list[Message]:
    """The problem as a curated trace: the prompt that the verifier sends, and the worked solution."""
    return [
        Message(role="user", content=prompt(problem.question)),
        Message(role="assistant", content=problem.solution),
    ]


def prompt(question: str) -> str:
    return f"{question}\n\n{INSTRUCTION}"


def question_of(prompt: str) -> str:
    """The question in a prompt."""
    return prompt.removesuffix(f"\n\n{INSTRUCTION}")


def demonstrations(problems: list[Problem]) -> str:
    """Problems and solutions as one text, for initializers and for the in-context baselines."""
    return "\n\n".join(f"Question: {problem.question}\nAnswer: {problem.solution}" for problem in problems)


def marked_number(text: str) -> Decimal | None:
    """The last number in the line of the last `####` that anything follows; None where there is no such number."""
    stated = (rest.strip() for rest in reversed(_MARKER.split(text)[1:]))
    line = next((rest.partition("\n")[0] for rest in stated if _AROUND.sub("", rest).strip()), "")
    return last_number(line)


def last_number(text: str) -> Decimal | None:
    """The number that the last word with a digit is, beside markup, money signs, a unit and closing punctuation; None where
    that word is a fraction, a time, a range, groups of digits (1 000) or another expression: a part of one is never read.
    """
    joined = _SPACED_GROUPS.sub(lambda groups: groups[0].replace(" ", "·"), _THOUSANDS.sub(",", text))
    words = _APART.split(_SPACED_OPERATOR.sub(r"\1", joined))
    word = next((word for word in reversed(words) if _HAS_DIGIT.search(word)), "")
    pieces = list(filter(None, _AROUND.split(word)))
    with_digit = [place for place, piece in enumerate(pieces) if _HAS_DIGIT.search(piece)]
    if len(with_digit) != 1 or any(map(_CHANGES_WHAT_FOLLOWS.search, pieces[: with_digit[0]])):
        return None
    return _whole(pieces[with_digit[0]])


def _whole(piece: str) -> Decimal | None:
    found = _WHOLE.fullmatch(piece)
    if found is None:
        return None
    digits = f"{found['minus'] or ''}{found['number']}{found['exponent'] or ''}"
    return Decimal(digits.replace(",", "").replace("−", "-"))
