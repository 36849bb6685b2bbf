"""What verification found, written where an artifact goes: into its manifest."""

from dataclasses import asdict

from lpc_ray.artifacts.store import record_verification
from lpc_ray.records import Tally
from lpc_ray.run.folder import RunFolder
from lpc_ray.verification.outcomes import Answerer, OutcomeStore


def keep_score(run: RunFolder, answerer: Answerer, split: str, outcomes: OutcomeStore) -> None:
    """Record checks passed and in all on `split`, where outcomes are stored, in the manifest of a prefix."""
    found = outcomes.get(answerer.name, split)
    if answerer.prefix is not None and found is not None:
        record_verification(
            run.artifacts, answerer.prefix.digest, outcomes.protocol, **{split: asdict(Tally.of(found))}
        )
