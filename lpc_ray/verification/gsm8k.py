"""GSM8K: the last number after `####`, exact; a fraction, a time or another expression is no number.

`lenient` also takes the last number of a reply that never writes the marker.
"""

import random
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from lpc_ray.config.loading import Strict
from lpc_ray.config.recipe import MOST, Seed
from lpc_ray.errors import DataError
from lpc_ray.model.thinking import said
from lpc_ray.records import Ask, Case, digest_of
from lpc_ray.sources.gsm8k import Problem, last_number, marked_number, prompt, question_of, read_problems
from lpc_ray.verification.base import Benchmark, Examination, judged, rows_of

SCORER = "gsm8k/4"


class Settings(Strict):
    """How many problems of the file are drawn for each split, and the seed of the draw."""

    num_tune: Annotated[int, Field(ge=1, le=MOST)] = 24
    num_held_out: Annotated[int, Field(ge=1, le=MOST)] = 100
    seed: Seed = 0


@dataclass(frozen=True)
class GSM8K(Benchmark):
    cases: tuple[Case, ...]

    def identity(self) -> list[Any]:
        return [SCORER, rows_of(self.cases)]

    def asked(self, case: Case) -> str:
        return question_of(case.question)

    def examine(self, case: Case, ask: Ask) -> Examination:
        [reply] = yield [ask]
        wanted, marked = Decimal(case.answers[0]), marked_number(text := said(reply))
        found = last_number(text) if marked is None else marked
        return judged(
            marked == wanted,
            lenient=float(found == wanted),
            marked=float(marked is not None),
            cap_hit=float(reply.finish_reason == "length"),
        )


def load(path: Path, settings: Settings) -> GSM8K:
    """Raises: DataError for a file with fewer problems than the splits want, or with a drawn question twice."""
    problems = read_problems(path)
    wanted = settings.num_tune + settings.num_held_out
    if len(problems) < wanted:
        raise DataError(f"gsm8k {path}: got {len(problems)} problems, wanted num_tune + num_held_out = {wanted}")
    order = list(range(len(problems)))
    random.Random(digest_of("gsm8k", settings.seed)).shuffle(order)
    _check_distinct(path, problems, order[:wanted])
    tune = [_case(number, problems[number], "tune") for number in sorted(order[: settings.num_tune])]
    held_out = [_case(number, problems[number], "held_out") for number in sorted(order[settings.num_tune : wanted])]
    return GSM8K(tuple(tune + held_out))


def _check_distinct(path: Path, problems: list[Problem], drawn: list[int]) -> None:
    seen: dict[str, int] = {}
    for number in sorted(drawn):
        first = seen.setdefault(" ".join(problems[number].question.split()).casefold(), number)
        if first != number:
            raise DataError(
                f"gsm8k {path}: got the question of problem {first + 1} again as problem {number + 1}, wanted each once "
                "among the drawn cases"
            )


def _case(number: int, problem: Problem, split: Any) -> Case:
    return Case(f"gsm8k-{number:04d}", prompt(problem.question), (str(problem.answer),), split)
