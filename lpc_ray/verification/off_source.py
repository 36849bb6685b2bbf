"""The other side of a prefix: what it does to prompts that have nothing to do with its source.

Three figures beside the on-source score: drift of the next-token distribution (KL from the bare model), change of accuracy
on unrelated questions, and abstention on questions that the source cannot answer. Source: Cartridges++ (2026).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpc_ray.errors import DataError
from lpc_ray.model.thinking import said
from lpc_ray.records import Ask, Case, Outcome, Tally
from lpc_ray.sources.text import read_rows
from lpc_ray.verification.base import Benchmark, Examination, judged, rows_of
from lpc_ray.verification.declining import abstains
from lpc_ray.verification.short_answer import DistinctCases, is_answered, normalise

SCORER = "off_source/4"
SPLIT = "held_out"


@dataclass(frozen=True)
class OffSourceBenchmark(Benchmark):
    """A case without answers is unanswerable: it passes when the reply declines."""

    cases: tuple[Case, ...]

    def identity(self) -> list[Any]:
        return [SCORER, rows_of(self.cases)]

    def examine(self, case: Case, ask: Ask) -> Examination:
        [reply] = yield [ask]
        return judged(is_answered(said(reply), case.answers) if case.answers else abstains(said(reply)))


def load(path: Path) -> OffSourceBenchmark:
    """The questions of a JSONL file: id, question, answers (an empty list: unanswerable).

    Raises: DataError naming the line, for a malformed row, an id or question that occurs twice, or a file without both kinds.
    """
    cases: list[Case] = []
    seen = DistinctCases(f"off-source cases {path} ")
    for where, row in read_rows(path, "off-source cases"):
        case = _case(row, where)
        seen.add(case, where)
        cases.append(case)
    if len({bool(case.answers) for case in cases}) != 2:
        raise DataError(f"off-source cases {path}: wanted questions with answers and questions without")
    return OffSourceBenchmark(tuple(cases))


def _case(row: dict[str, Any], where: str) -> Case:
    try:
        name, question, answers = row["id"], row["question"], row["answers"]
    except KeyError as error:
        raise DataError(f"{where}: wanted an object with id, question and answers") from error
    is_text = all(isinstance(text, str) and text.strip() for text in (name, question))
    if not is_text or not isinstance(answers, list) or not all(isinstance(a, str) and normalise(a) for a in answers):
        raise DataError(f"{where}: wanted texts that are not empty, and a list of answers")
    return Case(name, question, tuple(answers), SPLIT)


@dataclass(frozen=True, slots=True)
class Damage:
    """The ledger's off-source columns. Shares are of the cases that were scored; None: there were none.

    kl_drift: mean over `drift_tokens` tokens of KL(bare model ‖ with prefix), nats, full vocabulary.
    """

    kl_drift: float
    drift_tokens: int
    accuracy: float | None
    accuracy_bare: float | None
    abstention: float | None
    abstention_bare: float | None

    @property
    def accuracy_change(self) -> float | None:
        return None if self.accuracy is None or self.accuracy_bare is None else self.accuracy - self.accuracy_bare

    def words(self) -> str:
        parts = [f"KL drift {self.kl_drift:.2f} nats per token"]
        for name, share, bare in (
            ("unrelated questions answered", self.accuracy, self.accuracy_bare),
            ("unanswerable ones declined", self.abstention, self.abstention_bare),
        ):
            if share is not None and bare is not None:
                parts.append(f"{name} {share:.0%} (bare model {bare:.0%})")
        return ", ".join(parts)


def damage(
    benchmark: OffSourceBenchmark,
    bare: Sequence[Outcome],
    with_prefix: Sequence[Outcome],
    kl_drift: float,
    drift_tokens: int,
) -> Damage:
    """What a prefix (outcomes `with_prefix`) changed against the bare model."""
    answerable = {case.id for case in benchmark.cases if case.answers}
    unanswerable = {case.id for case in benchmark.cases} - answerable
    return Damage(
        kl_drift=kl_drift,
        drift_tokens=drift_tokens,
        accuracy=_share(with_prefix, answerable),
        accuracy_bare=_share(bare, answerable),
        abstention=_share(with_prefix, unanswerable),
        abstention_bare=_share(bare, unanswerable),
    )


def _share(outcomes: Sequence[Outcome], ids: set[str]) -> float | None:
    return Tally.of(outcome for outcome in outcomes if outcome.case_id in ids).score
