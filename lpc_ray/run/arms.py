"""The sweep's axes multiplied out into arms, and the ids under which everything is stored."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lpc_ray.config.recipe import GENERAL, Recipe
from lpc_ray.config.shares import size_in_tokens
from lpc_ray.errors import ConfigError
from lpc_ray.records import Document, digest_of


@dataclass(frozen=True, slots=True)
class TraceSet:
    """What one family made of the source under one seed; the folder `traces/<id>` of a run."""

    family: str
    induction_seed: int
    id: str


@dataclass(frozen=True, slots=True)
class Arm:
    """One cell of the sweep. `traces` is the id of its trace set, `general_traces` that of the general prompts mixed in
    (None without), `id` covers all that its training depends on.
    """

    induction: str
    objective: str
    initializer: str
    num_tokens: int
    seed: int
    initializer_seed: int
    induction_seed: int
    traces: str
    general_traces: str | None
    id: str

    @property
    def trace_sets(self) -> list[TraceSet]:
        sets = [TraceSet(self.induction, self.induction_seed, self.traces)]
        if self.general_traces is not None:
            sets.append(TraceSet(GENERAL, self.induction_seed, self.general_traces))
        return sets

    @property
    def name(self) -> str:
        """A handle: letters, digits, `-` and `_` only."""
        parts = [self.induction, self.objective, self.initializer, f"p{self.num_tokens}", f"s{self.seed}"]
        if self.initializer_seed:
            parts.append(f"i{self.initializer_seed}")
        if self.induction_seed:
            parts.append(f"d{self.induction_seed}")
        return "-".join(parts)


def fingerprint(recipe: Recipe) -> str:
    """The recipe's identity; cluster, store and tracking have no part in it."""
    return digest_of(recipe.model_dump(mode="json"))


def traces_id(recipe: Recipe, documents: list[Document], family: str, induction_seed: int) -> str:
    """Traces are made once per (source, family with its settings, context, induction seed, teacher) and shared by all arms."""
    return digest_of(
        "traces",
        recipe.model.model_dump(mode="json"),
        recipe.prompt.model_dump(mode="json"),
        recipe.source.description,
        [document.digest for document in documents],
        family,
        recipe.induction.families[family],
        recipe.induction.context_tokens,
        induction_seed,
    )


def arms(
    recipe: Recipe,
    documents: list[Document],
    source_tokens: int | None = None,
    start_digests: Mapping[str, str] = MappingProxyType({}),
) -> list[Arm]:
    """All arms in the order written, promising ones first as the recipe has them; duplicates appear once.

    source_tokens: needed only where a `num_tokens` is a fraction of the source.
    start_digests: initializer → what it starts from besides the source, which is part of its arms' ids.
    Raises: ConfigError for a prefix that leaves nothing to train, a fraction outside (0, 1), or no source length.
    """
    found: dict[str, Arm] = {}
    for entry in recipe.sweep:
        axes = (
            entry.induction,
            entry.objective,
            entry.initializer,
            entry.num_tokens,
            entry.seed,
            entry.initializer_seed,
            entry.induction_seed,
        )
        for induction, objective, initializer, size, seed, initializer_seed, induction_seed in itertools.product(*axes):
            num_tokens = _num_tokens(size, source_tokens, recipe.prefix.frozen_tokens)
            traces = traces_id(recipe, documents, induction, induction_seed)
            general_traces = None
            if recipe.training.general_share:
                general_traces = traces_id(recipe, documents, GENERAL, induction_seed)
            arm_id = digest_of(
                "arm",
                traces,
                general_traces,
                objective,
                initializer,
                num_tokens,
                seed,
                initializer_seed,
                recipe.prefix.model_dump(mode="json"),
                recipe.training.model_dump(mode="json"),
                *([start_digests[initializer]] if initializer in start_digests else []),
            )
            found.setdefault(
                arm_id,
                Arm(
                    induction=induction,
                    objective=objective,
                    initializer=initializer,
                    num_tokens=num_tokens,
                    seed=seed,
                    initializer_seed=initializer_seed,
                    induction_seed=induction_seed,
                    traces=traces,
                    general_traces=general_traces,
                    id=arm_id,
                ),
            )
    return list(found.values())


def _num_tokens(size: int | float, source_tokens: int | None, frozen_tokens: int) -> int:
    if size < 1 and source_tokens is None:
        raise ConfigError(f"recipe.sweep num_tokens: got the fraction {size}, but the source was not tokenised")
    num_tokens = size_in_tokens(size, source_tokens or 0)
    if num_tokens <= frozen_tokens:
        share = f" ({size:g} of the source's {source_tokens} tokens)" if size < 1 else ""
        raise ConfigError(
            f"recipe.sweep num_tokens: got {num_tokens}{share}, wanted more than recipe.prefix.frozen_tokens = {frozen_tokens}"
        )
    return num_tokens
