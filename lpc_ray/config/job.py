"""A job's config: a recipe, and where it runs.

`recipe` decides what comes out and is hashed by `fingerprint()`. `cluster`, `store`, `tracking` and `report` say where it
runs and what is reported of it, and are never hashed: the same recipe on any cluster yields the same ids.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lpc_ray.config.loading import Strict, nearest, read, validated
from lpc_ray.config.recipe import GENERAL, MOST, Recipe

MOST_CORES = 65_536  # of one machine or group
Machines = Annotated[int, Field(ge=1, le=10_000)]
Threads = Annotated[int, Field(ge=1, le=1024)]


class EngineResources(Strict):
    """One pool of engine replicas serves teacher and verifier.

    `kind` names a module of `lpc_ray.adapters`; `extra` goes to its engine arguments as it is.
    """

    kind: str = "vllm"
    replicas: Machines = 1
    cpus: Annotated[float, Field(ge=0, le=MOST_CORES)] = 0.5
    gpus: Annotated[float, Field(ge=0, le=MOST_CORES)] = 0
    threads: Threads | None = None
    max_model_len: Annotated[int, Field(ge=64, le=MOST)] = 2048
    max_num_seqs: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    kv_cache_gib: Annotated[int, Field(ge=1, le=1_000_000)] = 2
    gpu_memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.85
    tensor_parallel: Annotated[int, Field(ge=1, le=MOST_CORES)] = 1
    extra: dict[str, Any] = {}


class TrainingResources(Strict):
    """The training group: Ray Train workers. `backend` names a module of `lpc_ray.adapters`; `zero_stage` is DeepSpeed's,
    and 3 shards the backbone as well. `collective_timeout_seconds`: how long a worker waits for the others within a step.
    """

    backend: str = "deepspeed"
    workers: Machines = 1
    cpus: Annotated[float, Field(gt=0, le=MOST_CORES)] = 0.5
    gpus: Annotated[float, Field(ge=0, le=MOST_CORES)] = 0
    threads: Threads = 2
    zero_stage: Literal[1, 3] = 1
    max_failures: Annotated[int, Field(ge=0, le=1000)] = 3
    collective_timeout_seconds: Annotated[int, Field(ge=1, le=1_000_000)] = 1800


class InductionResources(Strict):
    actors: Machines = 2
    cpus: Annotated[float, Field(gt=0, le=MOST_CORES)] = 0.1
    units_per_batch: Annotated[int, Field(ge=1, le=1_000_000)] = 16


class ClusterConfig(Strict):
    """`address`: a Ray cluster to join; null starts a local Ray unless this process is a submitted job."""

    address: str | None = None
    local_cpus: Annotated[int, Field(ge=1, le=MOST_CORES)] | None = None
    engine: EngineResources = EngineResources()
    training: TrainingResources = TrainingResources()
    induction: InductionResources = InductionResources()


class StoreConfig(Strict):
    """`url`: a local folder or any fsspec URL; the run is the folder `name` below it."""

    url: str = "runs"


class TrackingConfig(Strict):
    """`uri`: an MLflow tracking server; null is an SQLite store inside the run's folder."""

    uri: str | None = None
    experiment: str = "lpc_ray"


class ReportConfig(Strict):
    """`thresholds`: of the steps-to-quality table, as shares such as 0.5, `50%` or `12/19`. `expected_requests`: how often each
    prefix is expected to be used, for break-even; null is unknown. `served_metrics`: a file with what the server's /metrics
    answered, whose requests are the observed ones of the arms it names.
    """

    thresholds: tuple[float | str, ...] = (0.25, 0.50, 0.60)
    expected_requests: Annotated[int, Field(ge=1, le=10**15)] | None = None
    served_metrics: str | None = None


class JobConfig(Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    recipe: Recipe
    cluster: ClusterConfig = ClusterConfig()
    store: StoreConfig = StoreConfig()
    tracking: TrackingConfig = TrackingConfig()
    report: ReportConfig = ReportConfig()

    @model_validator(mode="after")
    def _families_exist(self) -> "JobConfig":
        known = set(self.recipe.induction.families)
        for entry in self.recipe.sweep:
            for family in entry.induction:
                if family not in known:
                    raise ValueError(
                        f"recipe.sweep: got induction {family!r}, wanted one of recipe.induction.families: "
                        f"{', '.join(sorted(known)) or 'none given'}{nearest(family, known)}"
                    )
        if self.recipe.training.general_share and GENERAL not in known:
            raise ValueError(
                f"recipe.training.general_share: got {self.recipe.training.general_share:g} without a family "
                f"recipe.induction.families.{GENERAL}, whose prompts are to be mixed in"
            )
        return self

    @model_validator(mode="after")
    def _gate_is_measured(self) -> "JobConfig":
        gate = self.recipe.gate
        if gate and self.recipe.off_source is None:
            wanted = [name for name, bound in gate if bound is not None and name != "min_held_out"]
            if wanted:
                raise ValueError(f"recipe.gate.{wanted[0]}: got a bound, but recipe.off_source does not measure it")
        return self


def load(path: str | Path, overrides: list[str] | None = None) -> JobConfig:
    """The config in YAML file `path`, with `overrides` such as `recipe.training.lr=0.02` applied.

    Raises: ConfigError (one line: got, wanted, where) for a missing or malformed file, an unknown key, which it names
    beside the nearest valid one, or a value out of range.
    """
    return validated(JobConfig, read(path, overrides), f"config {path}")
