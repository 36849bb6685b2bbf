"""Where a run's artifacts come from, as their manifests say it: recipe, source, and what kind of prefix each is."""

from dataclasses import dataclass
from typing import Any

from lpc_ray.artifacts.manifest import Kind
from lpc_ray.records import digest_of
from lpc_ray.run.plan import Plan
from lpc_ray.sources.skillsbench import is_skill


@dataclass(frozen=True)
class Origin:
    """recipe: the fingerprint; source: a digest of the documents in order; kinds: of each family's trained prefixes.
    prompt: how the recipe has prompts put, which a server follows.
    """

    recipe: str
    source: str
    kinds: dict[str, Kind]
    prompt: dict[str, Any]

    def untrained(self, start: dict[str, Any]) -> dict[str, Any]:
        """Kind and provenance of a prefix as its initializer, whose record is `start`, has made it: the same for every arm
        that begins with it, so that it makes no difference which of them publishes it first. It has cost nothing yet.
        """
        origin = {"recipe": self.recipe, "source": self.source, "prompt": self.prompt}
        provenance = {**origin, **start, "optimizer_steps": 0}
        return {"kind": "kv_prefix", "provenance": provenance}

    def description(
        self, start: dict[str, Any], step: int, induction: str, trained: dict[str, Any], costs: dict[str, Any]
    ) -> dict[str, Any]:
        """Kind, provenance and costs of a prefix after `step` steps on the traces of family `induction`, as arguments of
        `publish`. trained: what made it besides its start.
        """
        untrained = self.untrained(start)
        if step == 0:
            return untrained
        provenance = {**untrained["provenance"], **trained, "optimizer_steps": step}
        return {"kind": self.kinds[induction], "provenance": provenance, "costs": costs}


def origin_of(plan: Plan) -> Origin:
    """A family whose traces existed before makes a `reasoncache`; one that induces them a `skill` where the source is skills
    alone, else a `cartridge`. What was not trained is a `kv_prefix`, whoever was to train it.
    """
    induced: Kind = "skill" if all(map(is_skill, plan.documents)) else "cartridge"
    kinds: dict[str, Kind] = {
        name: "reasoncache" if family.has_traces() else induced for name, family in plan.families.items()
    }
    prompt = plan.config.recipe.prompt.model_dump(mode="json")
    return Origin(plan.fingerprint, digest_of([document.digest for document in plan.documents]), kinds, prompt)
