"""A job config checked against the material it names, before anything heavy is imported or anything is written."""

from dataclasses import dataclass
from pathlib import Path

from lpc_ray.config import JobConfig
from lpc_ray.errors import DataError
from lpc_ray.induction import build_family
from lpc_ray.induction.base import Family, Unit, plan_units
from lpc_ray.matrix import Arm, arms, fingerprint
from lpc_ray.records import Case, Document
from lpc_ray.sources import read_documents
from lpc_ray.tokenizer import TextTokenizer
from lpc_ray.verification import build_benchmark
from lpc_ray.verification.base import Benchmark, protocol_of
from lpc_ray.verification.off_source import OffSource
from lpc_ray.verification.off_source import load as load_off_source


@dataclass(frozen=True)
class Plan:
    """What a job will do. `material`: the source's token ids, documents in order; initializers start from it."""

    config: JobConfig
    fingerprint: str
    documents: list[Document]
    benchmark: Benchmark
    off_source: OffSource | None
    families: dict[str, Family]
    material: list[int]
    arms: list[Arm]
    protocol: str
    tokenizer: TextTokenizer

    @property
    def cases(self) -> tuple[Case, ...]:
        return self.benchmark.cases

    @property
    def document_text(self) -> str:
        return "\n\n".join(document.text for document in self.documents)

    def units(self, family: str, seed: int) -> list[Unit]:
        description = self.config.recipe.source.description
        return plan_units(self.families[family], family, self.documents, self.tokenizer.spans, description, seed)

    def trace_sets(self) -> list[Arm]:
        """One arm for each distinct trace set, in order of first use."""
        return list({arm.traces: arm for arm in reversed(self.arms)}.values())[::-1]


def make_plan(config: JobConfig, unsandboxed: bool = False) -> Plan:
    """unsandboxed: a verifier that runs replies' code may do so without isolation.

    Raises: ConfigError or DataError for the first thing that cannot be carried out: got, wanted, where."""
    recipe = config.recipe
    families = {name: build_family(name, settings) for name, settings in recipe.induction.families.items()}
    documents = read_documents(recipe.source.paths)
    benchmark = build_benchmark(recipe.verification)
    benchmark = benchmark.without_sandbox() if unsandboxed else benchmark
    tokenizer = TextTokenizer(recipe.model.id, recipe.model.revision)
    material = [token for document in documents for token in tokenizer.encode(document.text)]
    found = arms(recipe, documents, source_tokens=len(material))
    for arm in found:
        if arm.num_tokens > len(material):
            raise DataError(
                f"arm {arm.name}: got a source of {len(material)} tokens, wanted at least num_tokens = {arm.num_tokens}"
            )
    model = recipe.model.model_dump(mode="json")
    protocol = protocol_of(benchmark, recipe.prompt.system, recipe.verification.max_tokens, model)
    return Plan(
        config=config,
        fingerprint=fingerprint(recipe),
        documents=documents,
        benchmark=benchmark,
        off_source=load_off_source(Path(recipe.off_source.cases)) if recipe.off_source else None,
        families=families,
        material=material,
        arms=found,
        protocol=protocol,
        tokenizer=tokenizer,
    )
