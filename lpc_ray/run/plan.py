"""A job config checked against the source it names, before anything heavy is imported or anything is written."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpc_ray.artifacts.handles import ARTIFACTS, find_digest, parts_of
from lpc_ray.config.job import JobConfig, ReportConfig
from lpc_ray.config.plugins import check_plugin
from lpc_ray.config.recipe import GENERAL, Recipe
from lpc_ray.config.shares import parse_share
from lpc_ray.errors import ConfigError, DataError
from lpc_ray.induction import build_family
from lpc_ray.induction.base import Family, Unit, plan_units
from lpc_ray.model.architecture import check_architecture, check_context, stated_config
from lpc_ray.model.chat import ChatTemplate, PromptFormat
from lpc_ray.model.embedded import canonical_name, resolve_model
from lpc_ray.model.identity import check_same, model_identity, stated_identity
from lpc_ray.model.tokenizer import TextTokenizer
from lpc_ray.prefix.starts import Starts, read_starts
from lpc_ray.records import Case, Document
from lpc_ray.run.arms import Arm, TraceSet, arms, fingerprint
from lpc_ray.run.fitting import check_some_fit
from lpc_ray.run.leakage import check_family, check_sources
from lpc_ray.run.prompts import check_families, check_vocabulary, longest_prompt
from lpc_ray.serving.observed import observed_requests
from lpc_ray.sources.documents import read_sources
from lpc_ray.sources.folder import LeftOut
from lpc_ray.storage import Store, open_store
from lpc_ray.traces.inducer import InductionTask
from lpc_ray.training.objectives import load_objective
from lpc_ray.verification import build_benchmark
from lpc_ray.verification.base import Benchmark, protocol_of
from lpc_ray.verification.off_source import OffSourceBenchmark
from lpc_ray.verification.off_source import load as load_off_source

ADAPTERS = "lpc_ray.adapters"  # whose modules are looked up by name and not imported here


@dataclass(frozen=True)
class Plan:
    """What a job will do. `starts.source_ids`: the source's token ids, documents in order. `left_out`: what its folders hold
    besides. `doubts`: a line on each held-out case that the source may ask in other words. `stated`: what the model's files
    say of it (`stated_config`).
    """

    config: JobConfig
    fingerprint: str
    documents: list[Document]
    left_out: list[LeftOut]
    benchmark: Benchmark
    off_source: OffSourceBenchmark | None
    families: dict[str, Family]
    starts: Starts
    arms: list[Arm]
    protocol: str
    doubts: list[str]
    tokenizer: TextTokenizer
    template: ChatTemplate
    stated: Any

    @property
    def source_ids(self) -> list[int]:
        return self.starts.source_ids

    @property
    def cases(self) -> tuple[Case, ...]:
        return self.benchmark.cases

    def longest_prompt(self, document: str | None = None) -> int:
        """Tokens of the longest case's first request, with those of the chat template. document: what is read beside it."""
        return longest_prompt(self.benchmark, self.config.recipe.prompt.system, self.template, document)

    @property
    def document_text(self) -> str:
        return "\n\n".join(document.text for document in self.documents)

    @property
    def context_tokens(self) -> int:
        """The longest ask with its reply, and the longest trace, by the recipe and the model alone."""
        most = getattr(self.stated, "max_position_embeddings", None)
        wanted = self.config.recipe.induction.context_tokens
        return wanted if most is None else min(wanted, most)

    def units(self, family: str, seed: int) -> list[Unit]:
        description = self.config.recipe.source.description
        return plan_units(self.families[family], family, self.documents, self.tokenizer.spans, description, seed)

    def induction_task(self, one: TraceSet) -> InductionTask:
        recipe = self.config.recipe
        return InductionTask(
            family=one.family,
            settings=recipe.induction.families[one.family],
            seed=one.induction_seed,
            model=recipe.model.id,
            revision=recipe.model.revision,
            prompt=PromptFormat(**dict(recipe.prompt)),
            context_tokens=self.context_tokens,
        )

    def check_teacher_tokens(self, one: TraceSet, made: int) -> None:
        """Raises: DataError for a teacher's trace set that cost fewer tokens than every arm is to train on."""
        budget = self.config.recipe.training.teacher_tokens
        is_taught = one.family != GENERAL and self.families[one.family].needs_teacher()
        if budget is not None and is_taught and made < budget:
            raise DataError(
                f"recipe.induction.families.{one.family}: got {made} teacher tokens from all its units, wanted at least "
                f"recipe.training.teacher_tokens = {budget}"
            )

    def check_model(self) -> None:
        """Raises: ConfigError for a model that no prefix enters, and for a context too short for what is asked of it: a
        prefix, a question and a reply, the engine's length, a document that an initializer reads whole.
        """
        room, config = self.config.cluster.engine.max_model_len, self.stated
        check_architecture(config)
        for parts, least in self._verified():
            if room < least:
                raise ConfigError(
                    f"cluster.engine.max_model_len: got {room}, wanted at least the {least} tokens of {parts}"
                )
            check_context(config, least, parts)
        for name, tokens in self.starts.whole_source().items():
            check_context(config, tokens, f"the document that {name} reads whole")
        longest = max(len(self.tokenizer.encode(document.text)) for document in self.documents)
        for name, family in self.families.items():
            if (asked := family.longest_ask(longest)) > self.context_tokens:
                raise ConfigError(
                    f"recipe.induction.families.{name}: got chunks and answers of {asked} tokens together, wanted at most "
                    f"the {self.context_tokens} of recipe.induction.context_tokens and the model"
                )
        taught = {one.family for one in self.trace_sets() if self.families[one.family].needs_teacher()}
        if taught and room < self.context_tokens:
            raise ConfigError(
                f"cluster.engine.max_model_len: got {room}, wanted at least the {self.context_tokens} in which "
                f"{', '.join(sorted(taught))} may ask; recipe.induction.context_tokens sets how many"
            )
        if room > getattr(config, "max_position_embeddings", room):
            raise ConfigError(
                f"cluster.engine.max_model_len: got {room}, wanted at most the model's {config.max_position_embeddings}"
            )

    def check_units(self) -> None:
        """Raises: DataError for a trace set whose units are all too long."""
        for one in self.trace_sets():
            family, units = self.families[one.family], self.units(one.family, one.induction_seed)
            where, encode = f"recipe.induction.families.{one.family}", self.tokenizer.encode
            check_some_fit(where, family, units, one.induction_seed, self.template, encode, self.context_tokens)

    def _verified(self) -> list[tuple[str, int]]:
        """What is read at once in verification at most, in words and in tokens."""
        recipe, sizes = self.config.recipe, sorted(arm.num_tokens for arm in self.arms)
        question, reply = self.longest_prompt(), recipe.verification.max_tokens
        wanted = [
            (f"prefix ({sizes[-1]}), longest prompt ({question}) and reply ({reply})", sizes[-1] + question + reply)
        ]
        if self.off_source is not None and recipe.off_source is not None:
            asked = longest_prompt(self.off_source, recipe.prompt.system, self.template)
            reply_too = recipe.off_source.max_tokens
            parts = f"prefix ({sizes[-1]}), longest off-source prompt ({asked}) and reply ({reply_too})"
            wanted.append((parts, sizes[-1] + asked + reply_too))
        for size in [size for size in sizes if size <= len(self.source_ids)][-1:]:
            cut = self.longest_prompt(self.tokenizer.decode(self.source_ids[:size]))
            wanted.append((f"longest prompt with the document cut to {size} ({cut}) and reply ({reply})", cut + reply))
        return wanted

    def trace_sets(self) -> list[TraceSet]:
        """Every distinct trace set of the arms, in order of first use."""
        return list({one.id: one for arm in self.arms for one in arm.trace_sets}.values())


def make_plan(config: JobConfig, unsandboxed: bool = False) -> Plan:
    """unsandboxed: a verifier that runs replies' code may do so without isolation.

    Raises: LPCError for the first thing that cannot be carried out: got, wanted, where.
    """
    _check_report(config.report)
    check_plugin(ADAPTERS, "new_engine", config.cluster.engine.kind, "cluster.engine.kind")
    check_plugin(ADAPTERS, "new_stepper", config.cluster.training.backend, "cluster.training.backend")
    config = _with_canonical_model(config)
    recipe = config.recipe
    families = {name: build_family(name, settings) for name, settings in recipe.induction.families.items()}
    sources = read_sources(recipe.source.paths)
    documents = sources.documents
    benchmark = build_benchmark(recipe.verification)
    benchmark = benchmark.without_sandbox() if unsandboxed else benchmark
    for name, family in families.items():
        check_family(name, family, benchmark)
    doubts = check_sources(documents, benchmark)
    tokenizer = TextTokenizer(recipe.model.id, recipe.model.revision)
    template = tokenizer.chat(PromptFormat(**dict(recipe.prompt)))
    template.check_end()
    check_families(families, template)
    stated = stated_config(resolve_model(recipe.model.id), recipe.model.revision)
    check_vocabulary(recipe, documents, benchmark.cases, families, tokenizer, getattr(stated, "vocab_size", None))
    source_ids = [token for document in documents for token in tokenizer.encode(document.text)]
    starts = read_starts(recipe, source_ids, tokenizer.encode)
    found = arms(recipe, documents, len(source_ids), starts.digests)
    needs_teacher = _needs_teacher(recipe)
    for arm in found:
        if needs_teacher[arm.objective] and not families[arm.induction].needs_teacher():
            raise ConfigError(
                f"recipe.sweep: arm {arm.name}: got objective {arm.objective}, wanted ntp: {arm.induction} has no teacher "
                "whose distributions could be learned"
            )
        for initializer in (arm.initializer, *recipe.initializers.training_free):
            starts.check(initializer, arm.num_tokens, f"arm {arm.name}")
    earlier = _earlier_prefixes(recipe, starts)
    model = recipe.model.model_dump(mode="json")
    protocol = protocol_of(
        benchmark, recipe.prompt.system, recipe.verification.max_tokens, model, recipe.prompt.rendering()
    )
    plan = Plan(
        config=config,
        fingerprint=fingerprint(recipe),
        documents=documents,
        left_out=sources.left_out,
        benchmark=benchmark,
        off_source=load_off_source(Path(recipe.off_source.cases)) if recipe.off_source else None,
        families=families,
        starts=starts,
        arms=found,
        protocol=protocol,
        doubts=doubts,
        tokenizer=tokenizer,
        template=template,
        stated=stated,
    )
    plan.check_model()
    plan.check_units()
    _check_same_model(recipe, earlier)
    return plan


def _with_canonical_model(config: JobConfig) -> JobConfig:
    """The model's name is part of every id: whatever names the same model gives the same ids. Raises: ConfigError."""
    name, revision = canonical_name(config.recipe.model.id), config.recipe.model.revision
    if revision is not None and os.path.isdir(resolve_model(name)):
        raise ConfigError(
            f"recipe.model.revision: got {revision!r} of {name}, a folder, wanted none: a hub's models have some"
        )
    model = config.recipe.model.model_copy(update={"id": name})
    return config.model_copy(update={"recipe": config.recipe.model_copy(update={"model": model})})


def _needs_teacher(recipe: Recipe) -> dict[str, bool]:
    """Objective in use → whether it learns from a teacher's distributions. Raises: ConfigError for an unknown one."""
    return {
        name: load_objective(name, f"recipe.sweep.{number}.objective.{place}").needs_teacher
        for number, entry in enumerate(recipe.sweep)
        for place, name in enumerate(entry.objective)
    }


def _earlier_prefixes(recipe: Recipe, starts: Starts) -> list[tuple[str, Store, str]]:
    """Where the config names an LPC that exists already, its store and its digest."""
    found = []
    for name, extra in starts.extras.items():
        if extra.artifact is not None:
            found.append((f"recipe.initializers.{name}", *extra.artifact))
    if recipe.baseline_prefixes is not None:
        library = open_store(recipe.baseline_prefixes.store)
        for handle in recipe.baseline_prefixes.handles:
            where = f"recipe.baseline_prefixes: {handle}"
            found += [(where, library, find_digest(library, part)) for part in parts_of(handle)]
    return found


def _check_same_model(recipe: Recipe, earlier: list[tuple[str, Store, str]]) -> None:
    if not earlier:
        return
    from lpc_ray.artifacts.store import stored_manifest

    name, revision = resolve_model(recipe.model.id), recipe.model.revision
    is_here = Path(name).is_dir()  # a hub's weights are not fetched for it: they are compared when a prefix is loaded
    model = model_identity(name, revision) if is_here else stated_identity(name, revision)
    for where, store, digest in earlier:
        check_same(stored_manifest(store / ARTIFACTS, digest).identity, model, where, weights=is_here)


def _check_report(report: ReportConfig) -> None:
    """A report is written last; what it could not be written with is refused first."""
    for threshold in report.thresholds:
        parse_share(threshold)
    if report.served_metrics is not None:
        observed_requests(report.served_metrics)
