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
class Answerer:
    """What answers: the bare model, the model with `document` in its prompt, or with a prefix.

    `name` is the key of its outcomes: a prefix's digest, or a baseline's name with all that it depends on.
    """

    name: str
    document: str | None = None
    prefix: PrefixRef | None = None


class OutcomeStore:
    """Outcomes by (answerer, split) under one protocol. store: the folder of that protocol's outcomes."""

    def __init__(self, store: Store, protocol: str):
        self.store = store
        self.protocol = protocol

    def get(self, answerer: str, split: str) -> tuple[Outcome, ...] | None:
        path = self._path(answerer, split)
        if not self.store.exists(path):
            return None
        try:
            return tuple(Outcome(**row) for row in self.store.read_json(path))
        except TypeError as error:
            raise StorageError(f"{self.store.path(path)}: got no list of outcomes: {error}") from error

    def put(self, answerer: str, split: str, outcomes: list[Outcome]) -> None:
        self.store.write_json(self._path(answerer, split), [asdict(outcome) for outcome in outcomes])

    def _path(self, answerer: str, split: str) -> str:
        return f"{answerer}.{split}.json"


@dataclass(frozen=True)
class Verifier:
    """A benchmark under one protocol, and where outcomes are kept."""

    benchmark: Benchmark
    outcomes: OutcomeStore
    system: str | None
    max_tokens: int

    def verify(self, answerer: Answerer, split: str, generate: Generate) -> tuple[Outcome, ...]:
        """The outcomes of `answerer` on `split`: the stored ones, and new ones through `generate`, stored."""
        known = self._known(answerer.name, split)
        cases = [case for case in self.benchmark.cases if case.split == split]
        asks = [(case, self.ask(answerer, case)) for case in cases if case.id not in known]
        if asks:
            found = run_examinations(self.benchmark, asks, generate, self.outcomes.protocol)
            known |= {outcome.case_id: outcome for outcome in found}
            self.outcomes.put(answerer.name, split, [known[case.id] for case in cases])
        return tuple(known[case.id] for case in cases)

    def is_verified(self, answerer: str, split: str) -> bool:
        """Whether `verify` would ask for nothing."""
        known = self._known(answerer, split)
        return all(case.id in known for case in self.benchmark.cases if case.split == split)

    def _known(self, answerer: str, split: str) -> dict[str, Outcome]:
        """Case → stored outcome, without those of failures that may be over."""
        stored = self.outcomes.get(answerer, split) or ()
        return {outcome.case_id: outcome for outcome in stored if not self.benchmark.is_stale(outcome)}

    def verify_all(self, wanted: Sequence[tuple[Answerer, str]], generate: Generate) -> list[tuple[Outcome, ...]]:
        """As `verify` for each (answerer, split), in order; all at once, so that an engine's batches are full.

        generate: called from several threads. An answerer that is wanted twice is asked once.
        """
        once = {(answerer.name, split): (answerer, split) for answerer, split in wanted}
        with ThreadPoolExecutor(max_workers=max(1, len(once))) as threads:
            asked = {
                key: threads.submit(self.verify, answerer, split, generate) for key, (answerer, split) in once.items()
            }
        return [asked[answerer.name, split].result() for answerer, split in wanted]

    def ask(self, answerer: Answerer, case: Case) -> Ask:
        """The request that opens a case. An answerer with a prefix gets exactly what the bare model gets."""
        messages = self.benchmark.messages(case, answerer.document, self.system)
        return Ask(tuple(messages), Decoding(max_tokens=self.max_tokens), prefix=answerer.prefix)
