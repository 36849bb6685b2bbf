"""A job config checked against the material it names, before anything heavy is imported or anything is written."""

from dataclasses import dataclass
from pathlib import Path

from lpc_ray.config import JobConfig
from lpc_ray.handles import find_digest, parts_of
from lpc_ray.induction import build_family
from lpc_ray.induction.base import Family, Unit, plan_units
from lpc_ray.matrix import Arm, arms, fingerprint
from lpc_ray.records import Case, Document
from lpc_ray.sources import read_documents
from lpc_ray.starts import Starts, read_starts
from lpc_ray.storage import open_store
from lpc_ray.tokenizer import TextTokenizer
from lpc_ray.verification.short_answer import protocol_of, read_cases


@dataclass(frozen=True)
class Plan:
    """What a job will do. `starts.material`: the source's token ids, documents in order."""

    config: JobConfig
    fingerprint: str
    documents: list[Document]
    cases: list[Case]
    families: dict[str, Family]
    starts: Starts
    arms: list[Arm]
    protocol: str
    tokenizer: TextTokenizer

    @property
    def material(self) -> list[int]:
        return self.starts.material

    @property
    def document_text(self) -> str:
        return "\n\n".join(document.text for document in self.documents)

    def units(self, family: str, seed: int) -> list[Unit]:
        description = self.config.recipe.source.description
        return plan_units(self.families[family], family, self.documents, self.tokenizer.spans, description, seed)

    def trace_sets(self) -> list[Arm]:
        """One arm for each distinct trace set, in order of first use."""
        return list({arm.traces: arm for arm in reversed(self.arms)}.values())[::-1]


def make_plan(config: JobConfig) -> Plan:
    """Raises: LPCError for the first thing that cannot be carried out: got, wanted, where."""
    recipe = config.recipe
    families = {name: build_family(name, settings) for name, settings in recipe.induction.families.items()}
    documents = read_documents(recipe.source.paths)
    cases = read_cases(Path(recipe.verification.cases))
    tokenizer = TextTokenizer(recipe.model.id, recipe.model.revision)
    material = [token for document in documents for token in tokenizer.encode(document.text)]
    starts = read_starts(recipe, material, tokenizer.encode)
    found = arms(recipe, documents, len(material), starts.digests)
    for arm in found:
        for initializer in (arm.initializer, *recipe.initializers.training_free):
            starts.check(initializer, arm.num_tokens, f"arm {arm.name}")
    if recipe.prefixes is not None:
        library = open_store(recipe.prefixes.store)
        for handle in recipe.prefixes.handles:
            for part in parts_of(handle):
                find_digest(library, part)
    protocol = protocol_of(
        cases, recipe.prompt.system, recipe.verification.max_tokens, recipe.model.model_dump(mode="json")
    )
    return Plan(
        config=config,
        fingerprint=fingerprint(recipe),
        documents=documents,
        cases=cases,
        families=families,
        starts=starts,
        arms=found,
        protocol=protocol,
        tokenizer=tokenizer,
    )
