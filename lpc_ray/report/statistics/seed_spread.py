"""How far one recipe's score moves when only its seeds change."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lpc_ray.report.english import counted
from lpc_ray.report.ledger.row import Row

WANTED_SEEDS = 3
SEED_FIELDS = ("seed", "initializer_seed", "induction_seed")
ENDED_EARLY = ("stopped", "unfinished", "diverged", "out of memory", "failed")


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """One recipe's rows on one task of one run, a row per seed. Scores are fractions of held-out checks.

    scores: of the rows that were trained to the end and have one. ended_early, unscored: how many were not, had none.
    distinct: scores with every artifact counted once, over which a spread means something.
    """

    run: str | None
    task: str | None
    recipe: str
    rows: tuple[Row, ...]

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(row.score for row in self._scored if row.score is not None)

    @property
    def _scored(self) -> list[Row]:
        return [row for row in self.rows if not ended_early(row) and row.score is not None]

    @property
    def distinct(self) -> tuple[float, ...]:
        known = {row.digest or f"row {number}": row.score for number, row in enumerate(self._scored)}
        return tuple(score for score in known.values() if score is not None)

    @property
    def shared(self) -> str:
        """`3 seeds, 1 artifact: step 0 was best`; empty where every seed has an artifact of its own."""
        return shared_artifacts([(row.digest, row.best_step) for row in self._scored])

    @property
    def ended_early(self) -> int:
        return sum(map(ended_early, self.rows))

    @property
    def unscored(self) -> int:
        return len(self.rows) - len(self.scores) - self.ended_early

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over seeds, each artifact once; None for fewer than two artifacts."""
        return statistics.stdev(self.distinct) if len(self.distinct) > 1 else None

    def words(self) -> str:
        scores = self.scores
        noun = "more seed" if scores else "seed"
        others = [
            *([f"{counted(self.ended_early, noun)} ended early"] if self.ended_early else []),
            *([f"{counted(self.unscored, noun)} without a score"] if self.unscored else []),
        ]
        rest = f" ({', '.join(others)})" if others else ""
        if not scores:
            return f"{self.recipe}: no seed that was trained to the end has a held-out score{rest}."
        if len(scores) == 1:
            return f"{self.recipe}: {100 * scores[0]:.1f} % on one seed{rest}; the spread is unknown."
        if len(self.distinct) == 1:
            return f"{self.recipe}: {100 * scores[0]:.1f} % ({self.shared}){rest}; the spread over seeds is unknown."
        spread = f"{100 * min(scores):.1f} to {100 * max(scores):.1f} % over {len(scores)} seeds{rest}"
        few = f"; fewer than the {WANTED_SEEDS} seeds a claim needs" if len(self.distinct) < WANTED_SEEDS else ""
        few = f" ({self.shared}){few}" if self.shared else few
        return f"{self.recipe}: {spread}, mean {100 * statistics.fmean(scores):.1f} %{few}."


def shared_artifacts(artifacts: Sequence[tuple[str | None, int | None]]) -> str:
    """How many artifacts the seeds of a recipe come to, and which step they share; empty where each has its own.

    artifacts: (digest, best step) per seed; an unknown digest is an artifact of its own.
    """
    counts = Counter(digest for digest, _ in artifacts if digest is not None)
    shared = [(digest, step) for digest, step in artifacts if digest is not None and counts[digest] > 1]
    if not shared:
        return ""
    num_artifacts = len(counts) + sum(digest is None for digest, _ in artifacts)
    steps = {step for _, step in shared}
    which = f": step {steps.pop()} was best" if len(steps) == 1 and None not in steps else ""
    of = f" for {len(shared)} of them" if which and len(shared) < len(artifacts) else ""
    return f"{counted(len(artifacts), 'seed')}, {counted(num_artifacts, 'artifact')}{which}{of}"


def seed_label(row: Row) -> str:
    """`seed 0`, `initializer seed 2`, or both; empty where no seed is known."""
    seeds = [(name.replace("_", " "), getattr(row, name)) for name in SEED_FIELDS]
    known = [(name, seed) for name, seed in seeds if seed is not None]
    shown = [(name, seed) for name, seed in known if seed] or known[:1]
    return ", ".join(f"{name} {seed}" for name, seed in shown)


def spreads(rows: Sequence[Row]) -> list[SeedSpread]:
    """One per run, task and (induction, objective, initializer, prefix size) among the arms, in the order given."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        if row.kind == "arm":
            parts = (row.induction, row.objective, row.initializer)
            named = [part for part in parts if part] or [row.name]
            size = [] if row.num_tokens is None else [counted(row.num_tokens, "prefix token")]
            groups.setdefault((row.run, row.task, ", ".join([*named, *size])), []).append(row)
    return [SeedSpread(*key, rows=tuple(group)) for key, group in groups.items()]


def ended_early(row: Row) -> bool:
    return row.status.casefold().startswith(ENDED_EARLY)
