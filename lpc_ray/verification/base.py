"""What a verifier kind is: cases, the prompt of a case, and a generator that judges the replies to it.

As with induction families, the generator yields a list of Asks, here of one, is sent their Replies, and returns a
Judgement; all cases are kept going at once, so that kinds which ask again (code that failed) batch as well as kinds which
ask once.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lpc_ray.asking import Answered, Asking, Generate, drive
from lpc_ray.model.chat import with_system
from lpc_ray.records import SCORED, Ask, Case, Message, Outcome, Verdict, digest_of

PROMPT_TOO_LONG = "prompt_too_long"


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


Examination = Asking[Judgement]


class Benchmark(ABC):
    """The cases of a verifier kind and the rule that judges them; picklable."""

    cases: tuple[Case, ...]

    @abstractmethod
    def identity(self) -> list[Any]:
        """All that a score of this kind depends on beside prompt, decoding and model; JSON-able."""

    @abstractmethod
    def examine(self, case: Case, ask: Ask) -> Examination:
        """Yields [`ask`] (and further asks, if any, one at a time), returns the judgement."""

    def messages(self, case: Case, document: str | None, system: str | None) -> list[Message]:
        """The conversation's opening: a document that an arm has in its prompt takes the place of the system message."""
        question = Message(role="user", content=case.question)
        return with_system([question], system if document is None else document)

    def asked(self, case: Case) -> str:
        """What a case asks, without the form that its answer is to have."""
        return case.question

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
        """A line on each case whose score would not be what it seems, as far as is known without running anything."""
        return []

    def is_stale(self, outcome: Outcome) -> bool:
        """Whether a stored outcome stands for a failure of ours that may be over, so that the case is to be asked again."""
        return outcome.verdict == "verifier_error"

    def without_sandbox(self) -> "Benchmark":
        """The same, allowed to run replies' code outside a sandbox; kinds that run none are as they were."""
        return self


def protocol_of(
    benchmark: Benchmark, system: str | None, max_tokens: int, model: dict, rendering: dict[str, Any] | None = None
) -> str:
    """What a score's meaning depends on: the cases, the prompt, the decoding, the scorer and the model.

    rendering: what the recipe sets of how messages are put, beside `system`.
    """
    return digest_of(*benchmark.identity(), system, max_tokens, model, *([rendering] if rendering else []))


def rows_of(cases: Sequence[Case]) -> list[list[Any]]:
    return [[case.id, case.question, case.answers, case.split] for case in cases]


def unscored_words(outcomes: Sequence[Outcome]) -> str:
    """`3 of 24 not scored: 2 verifier_error (prompt_too_long), 1 empty`; empty where all were scored."""
    kinds = Counter(
        outcome.verdict + (f" ({outcome.stage})" if outcome.verdict == "verifier_error" and outcome.stage else "")
        for outcome in outcomes
        if outcome.verdict not in SCORED
    )
    words = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return f"{kinds.total()} of {len(outcomes)} not scored: {words}" if kinds else ""


def run_examinations(
    benchmark: Benchmark, asks: Sequence[tuple[Case, Ask]], generate: Generate, protocol: str
) -> list[Outcome]:
    """One outcome per case, in order: one call of `generate` answers every pending ask.

    A case of which an ask does not fit the engine's context is a `verifier_error` at stage PROMPT_TOO_LONG: nothing was
    judged, and a rerun with more room asks it again.
    """
    examinations = drive([_within_context(benchmark.examine(case, ask)) for case, ask in asks], generate)
    return [_outcome(case, found, protocol) for (case, _), found in zip(asks, examinations, strict=True)]


def _within_context(examination: Examination) -> Examination:
    replies = None
    while True:
        try:
            asks = next(examination) if replies is None else examination.send(replies)
        except StopIteration as stop:
            return stop.value
        replies = yield asks
        if any(reply.is_too_long for reply in replies):
            examination.close()
            return Judgement("verifier_error", PROMPT_TOO_LONG, 0, 0)


def _outcome(case: Case, found: Answered[Judgement], protocol: str) -> Outcome:
    judgement = found.result
    return Outcome(
        case_id=case.id,
        verdict=judgement.verdict,
        stage=judgement.stage,
        passed=judgement.passed,
        total=judgement.total,
        reply=found.last_reply,
        prompt_tokens=found.prompt_tokens,
        generated_tokens=found.generated_tokens,
        seconds=found.seconds,
        protocol=protocol,
        figures=judgement.figures,
    )
