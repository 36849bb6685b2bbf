"""The config of a run over several tasks: SkillsBench's, with strata and promotion, or LongHealth's patients.

`recipe` is that of a job, without a source and a verification, which each task fills in (`lpc_ray.suite.jobs`).
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from lpc_ray.config.loading import Distinct, Strict
from lpc_ray.config.recipe import MOST, Seed


class PromotionRule(Strict):
    """A family is promoted when it meets every bound that is set; of those, `most` with the highest scores.

    by: a family's score is that of its best seed, or the mean over its seeds. beats: an answerer (a family, or a baseline
    such as no_context) whose score it must exceed, by at least `margin` of the checks. max_spread: between its seeds.
    min_seeds: with a score. seeds: the seeds of promoted families on the strata; rest_seeds: of the others, none by default.
    """

    by: Literal["best", "mean"] = "best"
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.0
    beats: str | None = None
    margin: Annotated[float, Field(ge=0, le=1)] = 0.0
    max_spread: Annotated[float, Field(ge=0, le=1)] | None = None
    min_seeds: Annotated[int, Field(ge=1, le=1000)] = 1
    most: Annotated[int, Field(ge=1, le=1000)] | None = None
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1), Distinct] = (0, 1, 2)
    rest_seeds: Annotated[tuple[Seed, ...], Distinct] = ()


class StrataRecipe(Strict):
    """How tasks are drawn (`lpc_ray.suite.strata`)."""

    seed: Seed = 0
    per_stratum: Annotated[int, Field(ge=1, le=1_000_000)] = 1


class SuiteRecipe(Strict):
    """`tasks`: a folder of tasks in SkillsBench's layout. `focus`: the one on which every family is tried first; it is in no
    stratum. `settings`, `max_tokens`: of the verification. `promotion`: which families run on the strata
    (`lpc_ray.suite.promotion`).
    """

    tasks: str
    focus: str
    strata: StrataRecipe = StrataRecipe()
    promotion: PromotionRule = PromotionRule()
    settings: dict[str, Any] = {}
    max_tokens: Annotated[int, Field(ge=1, le=MOST)] = 1024


class PatientsRecipe(Strict):
    """`file`: LongHealth's JSON. `ids`: of at most four patients. `num_tune`, `seed`: which of a patient's questions choose
    the best step; the others are held out.
    """

    file: str
    ids: Annotated[tuple[str, ...], Field(min_length=1, max_length=4), Distinct]
    num_tune: Annotated[int, Field(ge=1, le=MOST)] = 10
    seed: Seed = 0
    max_tokens: Annotated[int, Field(ge=1, le=MOST)] = 256


class ManyTasks(Strict):
    """What runs over several tasks share."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    recipe: dict[Literal["model", "prompt", "induction", "prefix", "training", "sweep"], Any]
    cluster: dict[str, Any] = {}
    store: dict[str, Any] = {}
    tracking: dict[str, Any] = {}
    report: dict[str, Any] = {}


class SuiteConfig(ManyTasks):
    suite: SuiteRecipe


class PatientsConfig(ManyTasks):
    patients: PatientsRecipe
