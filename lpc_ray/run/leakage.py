"""Held-out questions in what a prefix is made of: refused where they are asked, told where that is doubtful."""

from collections.abc import Sequence

from lpc_ray.errors import DataError
from lpc_ray.induction.base import Family
from lpc_ray.records import Document
from lpc_ray.verification.base import Benchmark
from lpc_ray.verification.likeness import SHORT
from lpc_ray.verification.repeats import Question, Repeat, repeats, words_of

_ARTICLES = frozenset(("a", "an", "the"))
_SAYS = {
    "exact": "the question of held-out case",
    "near": "nearly the question of held-out case",
    "pair": "the question in other words, and the answer, of held-out case",
}


def check_sources(documents: Sequence[Document], benchmark: Benchmark) -> list[str]:
    """A line on each held-out case whose question a source may hold in other words.

    Raises: DataError for a source that asks the question of a held-out case, word for word or nearly. A source that states
    the answer is what sources are for.
    """
    held_out = [case for case in benchmark.cases if case.split == "held_out"]
    found = repeats(
        [Question(case.id, benchmark.asked(case), case.answers) for case in held_out], [one.text for one in documents]
    )
    leaks = [repeat for repeat in found if repeat.kind != "doubtful"]
    if leaks:
        first = leaks[0]
        others = f"; {len(leaks) - 1} more of {len(held_out)} held-out cases are there too" if leaks[1:] else ""
        raise DataError(
            f"source {_place(first, documents)}: got {_SAYS[first.kind]} {first.question.case!r} ({first.excerpt!r}), wanted a "
            f"source without the questions that verification holds out{others}"
        )
    return [
        f"held-out case {one.question.case}: source {_place(one, documents)} may ask it in other words: {one.excerpt!r}"
        for one in found
    ]


def _place(found: Repeat, documents: Sequence[Document]) -> str:
    return f"{documents[found.text].name} line {found.line}"


def check_family(name: str, family: Family, benchmark: Benchmark) -> None:
    """Raises: DataError. A question of few words is looked for as a whole text, a longer one also inside a text."""
    held_out = {
        folded: case.id
        for case in benchmark.cases
        if case.split == "held_out"
        for folded in (_folded(case.question), _folded(benchmark.asked(case)))
    }
    for text in family.given_texts():
        folded = _folded(text)
        for question, case in held_out.items():
            if question == folded or (question.count(" ") >= SHORT - 1 and f" {question} " in f" {folded} "):
                raise DataError(
                    f"recipe.induction.families.{name}: got the question of held-out case {case!r} ({text[:200]!r}), wanted "
                    "texts without a question that verification holds out"
                )


def _folded(text: str) -> str:
    return " ".join(word for word in words_of(text) if word not in _ARTICLES)
