"""Which tasks of a suite are tried: small, medium and large by the size of their skill, and one drawn at random.

The public record names the strata and not how they were drawn; the definition is ours. Candidates in order of skill size
(then name) are cut into three equal parts, the larger parts first where they do not divide. Inside a part, and for the
random stratum among what is left, tasks are taken in the order of a hash of seed and name, so that the pick depends on
nothing else, neither on the machine nor on the order in which folders are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lpc_ray.errors import ConfigError
from lpc_ray.records import digest_of

Stratum = Literal["small", "medium", "large", "random"]
BY_SIZE: tuple[Stratum, ...] = ("small", "medium", "large")


@dataclass(frozen=True, slots=True)
class Pick:
    """A task, the stratum it stands for, and the characters of its skill as it is loaded into a prompt."""

    task: str
    stratum: Stratum
    skill_chars: int


@dataclass(frozen=True, slots=True)
class Strata:
    """What was picked, and from what: enough to pick again. bounds: stratum → least and greatest skill size in it."""

    seed: int
    per_stratum: int
    candidates: dict[str, int]
    bounds: dict[str, tuple[int, int]]
    picks: tuple[Pick, ...]

    @property
    def tasks(self) -> list[str]:
        return [pick.task for pick in self.picks]


def pick_strata(candidates: Mapping[str, int], seed: int = 0, per_stratum: int = 1) -> Strata:
    """candidates: task → skill characters; leave out what cannot be scored (no tests, a failing reference).

    Raises: ConfigError where there are too few for `per_stratum` in each of the four strata.
    """
    wanted = 4 * per_stratum
    if per_stratum < 1 or len(candidates) < wanted:
        raise ConfigError(
            f"strata: got {len(candidates)} tasks, wanted at least {wanted} for {per_stratum} in each of four"
        )
    ordered = sorted(candidates, key=lambda task: (candidates[task], task))
    parts = _thirds(ordered)
    picks = [
        Pick(task, stratum, candidates[task])
        for stratum, part in zip(BY_SIZE, parts, strict=True)
        for task in _drawn(part, seed, stratum)[:per_stratum]
    ]
    taken = {pick.task for pick in picks}
    rest = _drawn([task for task in ordered if task not in taken], seed, "random")
    picks += [Pick(task, "random", candidates[task]) for task in rest[:per_stratum]]
    return Strata(
        seed=seed,
        per_stratum=per_stratum,
        candidates={task: candidates[task] for task in ordered},
        bounds={
            stratum: (candidates[part[0]], candidates[part[-1]]) for stratum, part in zip(BY_SIZE, parts, strict=True)
        },
        picks=tuple(picks),
    )


def _thirds(ordered: list[str]) -> list[list[str]]:
    size, spare = divmod(len(ordered), 3)
    sizes = [size + (part >= 3 - spare) for part in range(3)]
    starts = [sum(sizes[:part]) for part in range(3)]
    return [ordered[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _drawn(tasks: list[str], seed: int, stratum: Stratum) -> list[str]:
    return sorted(tasks, key=lambda task: digest_of("stratum", seed, stratum, task))
