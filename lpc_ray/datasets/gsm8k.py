"""GSM8K: grade-school word problems with worked solutions (arXiv 2110.14168). JSONL, keys `question` and `answer`."""

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from lpc_ray.errors import DataError
from lpc_ray.records import Message
from lpc_ray.textfile import read_rows

MARKER = "####"
INSTRUCTION = "Reason step by step. End with a line that holds #### and the final number."
_CALCULATOR = re.compile(r"<<[^<>]*>>")
_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")


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


def first_problems(path: Path) -> list[Problem]:
    """The first N problems of a file, for a path written `FILE#N`. Raises: DataError also when it has fewer."""
    name, _, count = path.name.rpartition("#")
    problems = read_problems(path.with_name(name))
    if not count.isdigit() or not 1 <= int(count) <= len(problems):
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


def demonstrations(problems: list[Problem]) -> str:
    """Problems and solutions as one text, for initializers and for the in-context baselines."""
    return "\n\n".join(f"Question: {problem.question}\nAnswer: {problem.solution}" for problem in problems)


def marked_number(text: str) -> Decimal | None:
    """The last number in the line of the last `####`; None where there is no such number."""
    _, marker, rest = text.rpartition(MARKER)
    return last_number(rest.strip().partition("\n")[0]) if marker else None


def last_number(text: str) -> Decimal | None:
    """The last number in a text: thousands may have commas, money a dollar sign."""
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None
    try:
        return Decimal(numbers[-1].replace(",", "").replace("$", ""))
    except InvalidOperation:
        return None
