"""Ask the cases once, keep the outcomes: a score that exists is never asked for again."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from lpc_ray.prompting import with_system
from lpc_ray.records import Ask, Case, Decoding, Message, Outcome, PrefixRef, Reply
from lpc_ray.storage import Store
from lpc_ray.verification.short_answer import judge


@dataclass(frozen=True)
class Subject:
    """What answers: the bare model, the model with `document` as its system message, or with a prefix.

    `name` is the key of its outcomes: a prefix's digest, or a baseline's name with all that it depends on.
    """

    name: str
    document: str | None = None
    prefix: PrefixRef | None = None


class OutcomeStore:
    """Outcomes by (subject, split) under one protocol."""

    def __init__(self, store: Store, protocol: str):
        self.store = store
        self.protocol = protocol

    def get(self, subject: str, split: str) -> tuple[Outcome, ...] | None:
        path = self._path(subject, split)
        if not self.store.exists(path):
            return None
        return tuple(Outcome(**row) for row in self.store.read_json(path))

    def put(self, subject: str, split: str, outcomes: list[Outcome]) -> None:
        self.store.write_json(self._path(subject, split), [asdict(outcome) for outcome in outcomes])

    def _path(self, subject: str, split: str) -> str:
        return f"outcomes/{self.protocol}/{subject}.{split}.json"


@dataclass(frozen=True)
class Verifier:
    """The cases under one protocol, and where outcomes are kept."""

    cases: tuple[Case, ...]
    outcomes: OutcomeStore
    system: str | None
    max_tokens: int

    def verify(self, subject: Subject, split: str, generate: Callable[[list[Ask]], list[Reply]]) -> tuple[Outcome, ...]:
        """The outcomes of `subject` on `split`: the stored ones, or new ones through `generate`, stored."""
        known = self.outcomes.get(subject.name, split)
        if known is not None:
            return known
        cases = [case for case in self.cases if case.split == split]
        started = time.perf_counter()
        replies = generate([self.ask(subject, case) for case in cases])
        each = (time.perf_counter() - started) / len(cases)
        judged = [judge(case, reply, self.outcomes.protocol, each) for case, reply in zip(cases, replies, strict=True)]
        self.outcomes.put(subject.name, split, judged)
        return tuple(judged)

    def ask(self, subject: Subject, case: Case) -> Ask:
        system = self.system if subject.document is None else subject.document
        messages = with_system([Message(role="user", content=case.question)], system)
        return Ask(tuple(messages), Decoding(max_tokens=self.max_tokens), prefix=subject.prefix)
