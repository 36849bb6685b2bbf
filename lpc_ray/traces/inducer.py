"""Units of one family → rows of the trace store, through any teacher."""

from dataclasses import dataclass, replace
from typing import Any

from lpc_ray.asking import Generate
from lpc_ray.induction import build_family
from lpc_ray.induction.base import Induces, Unit, run_units
from lpc_ray.model.chat import ChatRenderer, PromptFormat, with_system
from lpc_ray.model.embedded import resolve_model
from lpc_ray.model.tokenizer import TextTokenizer
from lpc_ray.records import Ask, Reply, TraceRow
from lpc_ray.traces.tokenise import Provenance, tokenise


@dataclass(frozen=True)
class InductionTask:
    """One trace set to make; picklable. `context_tokens`: asks with their replies, and traces, that are longer are dropped."""

    family: str
    settings: dict[str, Any]
    seed: int
    model: str
    revision: str | None
    prompt: PromptFormat
    context_tokens: int


class Inducer:
    """The task's family, tokenizer and chat template, ready to work on batches of units.

    Loads transformers. Raises: ConfigError for a family or model that cannot be built.
    """

    def __init__(self, task: InductionTask):
        self.task = task
        self.family = build_family(task.family, task.settings)
        self.text = TextTokenizer(task.model, task.revision)
        self._render = ChatRenderer(resolve_model(task.model), task.revision, task.prompt)

    def rows(self, units: list[Unit], generate: Generate, family: Induces | None = None) -> list[TraceRow]:
        """The rows of `units`, kept and dropped; one call of `generate` answers all that is pending.

        An ask without a system message is opened with the recipe's, as every student's prompt is. One that is longer than the
        task's context together with its reply is answered with `Reply.too_long`, and the teacher does not see it.
        family: what to drive in place of the task's own (a recorder of it).
        """
        task = self.task
        provenance = Provenance(task.family, task.seed, task.model, task.context_tokens)

        def within_context(asks: list[Ask]) -> list[Reply]:
            opened = [replace(ask, messages=tuple(with_system(ask.messages, task.prompt.system))) for ask in asks]
            prompts = [len(self._render(ask.messages, True, ask.thinking)) for ask in opened]
            room = [task.context_tokens - ask.decoding.max_tokens for ask in opened]
            fitting = [ask for ask, tokens, most in zip(opened, prompts, room, strict=True) if tokens <= most]
            replies = iter(generate(fitting) if fitting else ())
            return [
                next(replies) if tokens <= most else Reply.too_long(tokens, ask.top_k)
                for ask, tokens, most in zip(opened, prompts, room, strict=True)
            ]

        finished = run_units(family or self.family, units, task.seed, within_context)
        return [
            tokenise(trace, unit.id, index, unit.chunk.document_digest, provenance, self._render, self.text.encode)
            for unit in units
            for index, trace in enumerate(finished[unit.id])
        ]
