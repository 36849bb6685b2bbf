"""The appendix: every held-out case, what each baseline and arm replied, and the verdict."""

from collections.abc import Sequence
from dataclasses import dataclass

from lpc_ray.records import Case, Outcome
from lpc_ray.report.ledger.ledger import ArmRecord, BaselineRecord, rows


@dataclass(frozen=True, slots=True)
class CaseLine:
    """One held-out case. `outcomes`: one per answerer, in the order of `VerdictGrid.names`; None where it has none."""

    id: str
    question: str
    answers: tuple[str, ...]
    outcomes: tuple[Outcome | None, ...]

    @property
    def num_passed(self) -> int:
        return sum(outcome is not None and outcome.verdict == "pass" for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class VerdictGrid:
    """Cases x answerers; an answerer without held-out outcomes has no column."""

    names: tuple[str, ...]
    lines: tuple[CaseLine, ...]


def verdict_grid(
    arms: Sequence[ArmRecord], baselines: Sequence[BaselineRecord], cases: Sequence[Case] = ()
) -> VerdictGrid:
    """`cases` gives order, questions and accepted answers; a case it lacks comes last, with its id alone."""
    names = [row.name for row in rows(arms, baselines)]
    held_out = [record.held_out for record in (*baselines, *arms)]
    columns = {
        name: {outcome.case_id: outcome for outcome in outcomes}
        for name, outcomes in zip(names, held_out, strict=True)
        if outcomes
    }
    answered = dict.fromkeys(case_id for column in columns.values() for case_id in column)
    known = {case.id: case for case in cases if case.id in answered}
    lines = [
        CaseLine(
            id=case_id,
            question=known[case_id].question if case_id in known else "",
            answers=known[case_id].answers if case_id in known else (),
            outcomes=tuple(column.get(case_id) for column in columns.values()),
        )
        for case_id in dict.fromkeys([*known, *answered])
    ]
    return VerdictGrid(names=tuple(columns), lines=tuple(lines))
