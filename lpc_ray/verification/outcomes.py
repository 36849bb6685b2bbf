"""Ask the cases once, keep the outcomes: a score that exists is never asked for again."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from lpc_ray.asking import Generate
from lpc_ray.errors import StorageError
from lpc_ray.records import Ask, Case, Decoding, Outcome, PrefixRef
from lpc_ray.storage import Store
from lpc_ray.verification.base import Benchmark, run_examinations


@dataclass(frozen=True)
class Subject:
    """What answers: the bare model, the model with `document` in its prompt, or with a prefix.

    `name` is the key of its outcomes: a prefix's digest, or a baseline's name with all that it depends on.
    """

    name: str
    document: str | None = None
    prefix: PrefixRef | None = None


class OutcomeStore:
    """Outcomes by (subject, split) under one protocol. store: the folder of that protocol's outcomes."""

    def __init__(self, store: Store, protocol: str):
        self.store = store
        self.protocol = protocol

    def get(self, subject: str, split: str) -> tuple[Outcome, ...] | None:
        path = self._path(subject, split)
        if not self.store.exists(path):
            return None
        try:
            return tuple(Outcome(**row) for row in self.store.read_json(path))
        except TypeError as error:
            raise StorageError(f"{self.store.path(path)}: got no list of outcomes: {error}") from error

    def put(self, subject: str, split: str, outcomes: list[Outcome]) -> None:
        self.store.write_json(self._path(subject, split), [asdict(outcome) for outcome in outcomes])

    def _path(self, subject: str, split: str) -> str:
        return f"{subject}.{split}.json"


@dataclass(frozen=True)
class Verifier:
    """A benchmark under one protocol, and where outcomes are kept."""

    benchmark: Benchmark
    outcomes: OutcomeStore
    system: str | None
    max_tokens: int

    def verify(self, subject: Subject, split: str, generate: Generate) -> tuple[Outcome, ...]:
        """The outcomes of `subject` on `split`: the stored ones, and new ones through `generate`, stored."""
        known = self._known(subject.name, split)
        cases = [case for case in self.benchmark.cases if case.split == split]
        asks = [(case, self.ask(subject, case)) for case in cases if case.id not in known]
        if asks:
            found = run_examinations(self.benchmark, asks, generate, self.outcomes.protocol)
            known |= {outcome.case_id: outcome for outcome in found}
            self.outcomes.put(subject.name, split, [known[case.id] for case in cases])
        return tuple(known[case.id] for case in cases)

    def is_verified(self, subject: str, split: str) -> bool:
        """Whether `verify` would ask for nothing."""
        known = self._known(subject, split)
        return all(case.id in known for case in self.benchmark.cases if case.split == split)

    def _known(self, subject: str, split: str) -> dict[str, Outcome]:
        """Case → stored outcome, without those of failures that may be over."""
        stored = self.outcomes.get(subject, split) or ()
        return {outcome.case_id: outcome for outcome in stored if not self.benchmark.is_stale(outcome)}

    def verify_all(self, wanted: Sequence[tuple[Subject, str]], generate: Generate) -> list[tuple[Outcome, ...]]:
        """As `verify` for each (subject, split), in order; all at once, so that an engine's batches are full.

        generate: called from several threads. A subject that is wanted twice is asked once.
        """
        once = {(subject.name, split): (subject, split) for subject, split in wanted}
        with ThreadPoolExecutor(max_workers=max(1, len(once))) as threads:
            asked = {
                key: threads.submit(self.verify, subject, split, generate) for key, (subject, split) in once.items()
            }
        return [asked[subject.name, split].result() for subject, split in wanted]

    def ask(self, subject: Subject, case: Case) -> Ask:
        """The request that opens a case. A subject with a prefix gets exactly what the bare model gets."""
        messages = self.benchmark.messages(case, subject.document, self.system)
        return Ask(tuple(messages), Decoding(max_tokens=self.max_tokens), prefix=subject.prefix)
