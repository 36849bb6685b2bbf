"""What a verifier kind is: cases, the prompt of a case, and a generator that judges the replies to it.

As with induction families, the generator yields an Ask, is sent its Reply, and returns a Judgement; the runner keeps all
cases going at once, so that kinds which ask again (code that failed) batch as well as kinds which ask once.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lpc_ray.model.chat import with_system
from lpc_ray.records import Ask, Case, Message, Outcome, Reply, Verdict, digest_of

Generate = Callable[[list[Ask]], list[Reply]]


@dataclass(frozen=True, slots=True)
class Judgement:
    """`passed` of `total` checks; `total` is fixed by the case. `stage`: where a failure arose."""

    verdict: Verdict
    stage: str
    passed: int
    total: int
    figures: dict[str, float] = field(default_factory=dict)


def judged(is_right: bool, **figures: float) -> Judgement:
    """The judgement of a case that is one check."""
    return Judgement("pass" if is_right else "fail", "" if is_right else "wrong_output", int(is_right), 1, figures)


Examination = Generator[Ask, Reply, Judgement]


class Benchmark(ABC):
    """The cases of a verifier kind and the rule that judges them; picklable."""

    cases: tuple[Case, ...]

    @abstractmethod
    def identity(self) -> list[Any]:
        """All that a score of this kind depends on beside prompt, decoding and model; JSON-able."""

    @abstractmethod
    def examine(self, case: Case, ask: Ask) -> Examination:
        """Yields `ask` (and further asks, if any), returns the judgement."""

    def messages(self, case: Case, document: str | None, system: str | None) -> list[Message]:
        """The conversation's opening: a document that an arm has in its prompt takes the place of the system message."""
        question = Message(role="user", content=case.question)
        return with_system([question], system if document is None else document)

    def added_tokens(self, max_tokens: int) -> int:
        """By how many tokens a later ask of an examination may be longer than the first."""
        return 0

    def check_runnable(self) -> None:
        """Raises: VerificationError when this machine lacks what the kind needs to judge replies."""
        return None

    def readiness(self) -> list[str]:
        """A line on each thing that this kind had to try out beforehand; kinds that run nothing have none."""
        return []

    def caveats(self) -> list[str]:
        """A line on each case whose score would not be what it seems, as far as can be told without running anything."""
        return []

    def is_stale(self, outcome: Outcome) -> bool:
        """Whether a stored outcome tells of a failure of ours that may be over, so that the case is to be asked again."""
        return outcome.verdict == "verifier_error"

    def without_sandbox(self) -> "Benchmark":
        """The same, allowed to run replies' code outside a sandbox; kinds that run none are as they were."""
        return self


def protocol_of(benchmark: Benchmark, system: str | None, max_tokens: int, model: dict) -> str:
    """What a score's meaning depends on: the cases, the prompt, the decoding, the scorer and the model."""
    return digest_of(*benchmark.identity(), system, max_tokens, model)


def rows_of(cases: Sequence[Case]) -> list[list[Any]]:
    return [[case.id, case.question, case.answers, case.split] for case in cases]


@dataclass(slots=True)
class _Open:
    """An examination under way. Tokens are summed over its replies."""

    case: Case
    steps: Examination
    ask: Ask | None = None
    judgement: Judgement | None = None
    reply: str = ""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0

    def advance(self, reply: Reply | None) -> None:
        started = time.perf_counter()
        try:
            self.ask = next(self.steps) if reply is None else self.steps.send(reply)
        except StopIteration as stop:
            self.ask, self.judgement = None, stop.value
        self.seconds += time.perf_counter() - started

    def answer(self, reply: Reply, seconds: float) -> None:
        self.reply = reply.text
        self.prompt_tokens += reply.num_prompt_tokens
        self.generated_tokens += len(reply.token_ids)
        self.seconds += seconds
        self.advance(reply)

    def outcome(self, protocol: str) -> Outcome:
        assert self.judgement is not None
        return Outcome(
            case_id=self.case.id,
            verdict=self.judgement.verdict,
            stage=self.judgement.stage,
            passed=self.judgement.passed,
            total=self.judgement.total,
            reply=self.reply,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            seconds=self.seconds,
            protocol=protocol,
            figures=self.judgement.figures,
        )


def run_examinations(
    benchmark: Benchmark, asks: Sequence[tuple[Case, Ask]], generate: Generate, protocol: str
) -> list[Outcome]:
    """One outcome per case, in order: one call of `generate` answers every pending ask."""
    everyone = [_Open(case, benchmark.examine(case, ask)) for case, ask in asks]
    for examination in everyone:
        examination.advance(None)
    while pending := [examination for examination in everyone if examination.ask is not None]:
        started = time.perf_counter()
        replies = generate([examination.ask for examination in pending if examination.ask is not None])
        each = (time.perf_counter() - started) / len(pending)
        for examination, reply in zip(pending, replies, strict=True):
            examination.answer(reply, each)
    return [examination.outcome(protocol) for examination in everyone]
