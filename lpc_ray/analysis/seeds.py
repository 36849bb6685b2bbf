"""How far one recipe's score moves when only its seeds change."""

from collections.abc import Sequence
from dataclasses import dataclass

from lpc_ray.analysis.row import Row
from lpc_ray.analysis.wording import counted

WANTED_SEEDS = 3


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """The held-out scores (fractions) of one recipe's finished arms, one per seed, and how many arms ended early."""

    recipe: str
    scores: tuple[float, ...]
    ended_early: int

    def words(self) -> str:
        if not self.scores:
            return f"{self.recipe}: no finished seed has a held-out score."
        early = f" ({counted(self.ended_early, 'more seed')} ended early)" if self.ended_early else ""
        if len(self.scores) == 1:
            return f"{self.recipe}: {100 * self.scores[0]:.1f} % on one seed{early}; the spread is unknown."
        low, high, mean = min(self.scores), max(self.scores), sum(self.scores) / len(self.scores)
        spread = f"{100 * low:.1f} to {100 * high:.1f} % over {len(self.scores)} seeds{early}, mean {100 * mean:.1f} %"
        few = f"; fewer than the {WANTED_SEEDS} seeds a claim needs" if len(self.scores) < WANTED_SEEDS else ""
        return f"{self.recipe}: {spread}{few}."


def spreads(rows: Sequence[Row]) -> list[SeedSpread]:
    """One per (induction, objective, initializer, prefix size) among the arms, in the order given."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.kind == "arm":
            recipe = f"{row.induction}, {row.objective}, {row.initializer}, {row.num_tokens} prefix tokens"
            groups.setdefault(recipe, []).append(row)
    return [
        SeedSpread(
            recipe=recipe,
            scores=tuple(row.score for row in group if row.status == "finished" and row.score is not None),
            ended_early=sum(row.status != "finished" for row in group),
        )
        for recipe, group in groups.items()
    ]
