"""Short answers: a reply passes when an accepted form occurs in it, both normalised."""

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

from lpc_ray.errors import DataError
from lpc_ray.records import Case, Outcome, Reply, digest_of
from lpc_ray.sources import read_text

SCORER = "short_answer/1"
_ARTICLES = {"a", "an", "the"}
_OUTER_PUNCTUATION = re.compile(r"(?<!\d)[.:,]|[.:,](?!\d)|[^\w\s.:,]|_")


def normalise(text: str) -> list[str]:
    """Case, width, articles and punctuation removed; `.`, `:` and `,` between digits stay. Returns words."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = _OUTER_PUNCTUATION.sub(" ", folded).split()
    return [word for word in words if word not in _ARTICLES]


def is_answered(reply: str, answers: tuple[str, ...]) -> bool:
    """Whether the words of an accepted form stand together, in order, in the reply."""
    said = normalise(reply)
    for answer in answers:
        form = normalise(answer)
        if any(said[start : start + len(form)] == form for start in range(len(said) - len(form) + 1)):
            return True
    return False


def judge(case: Case, reply: Reply, protocol: str, seconds: float) -> Outcome:
    passed = is_answered(reply.text, case.answers)
    return Outcome(
        case_id=case.id,
        verdict="pass" if passed else "fail",
        stage="" if passed else "wrong_output",
        passed=int(passed),
        total=1,
        reply=reply.text,
        prompt_tokens=reply.num_prompt_tokens,
        generated_tokens=len(reply.token_ids),
        seconds=seconds,
        protocol=protocol,
    )


def read_cases(path: Path) -> list[Case]:
    """The cases of a JSONL file: id, question, answers, split.

    Raises: DataError naming the line, for a missing or empty field, an unknown split, an answer without any word, or an
    id or question that occurs twice.
    """
    cases: list[Case] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(read_text(path, "cases").splitlines(), start=1):
        if not line.strip():
            continue
        case = _case(line, where=f"cases {path} line {number}")
        for key in (f"id {case.id!r}", f"question {case.question!r}"):
            if key in seen:
                raise DataError(f"cases {path} line {number}: got {key} again (first on line {seen[key]})")
            seen[key] = number
        cases.append(case)
    for split in ("tune", "held_out"):
        if not any(case.split == split for case in cases):
            raise DataError(f"cases {path}: got no case of split {split}, wanted at least one")
    return cases


def _case(line: str, where: str) -> Case:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: got {type(row).__name__}, wanted an object")
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


def protocol_of(cases: list[Case], system: str | None, max_tokens: int, model: dict) -> str:
    """What a score's meaning depends on: the cases, the prompt, the decoding, the scorer and the model."""
    rows = [[case.id, case.question, case.answers, case.split] for case in cases]
    return digest_of(SCORER, rows, system, max_tokens, model)
