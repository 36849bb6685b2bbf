"""What the families share in which a teacher with a chunk before it writes what a student without it will learn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from lpc_ray.config.recipe import MOST
from lpc_ray.induction.base import ASK_TOO_LONG, Family
from lpc_ray.model.thinking import said
from lpc_ray.records import Chunk, Document, Message, Reply, Trace
from lpc_ray.sources.documents import Encode, sample_chunks


class StudyFamily(Family):
    """`num_chunks` windows of each document, min to max tokens long, `conversations_per_chunk` units of work on each.

    max_answer_tokens: of a reply that becomes a target."""

    num_chunks: Annotated[int, Field(ge=1, le=1_000_000)] = 3
    conversations_per_chunk: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    min_chunk_tokens: Annotated[int, Field(ge=1, le=MOST)] = 512
    max_chunk_tokens: Annotated[int, Field(ge=1, le=MOST)] = 4096
    max_answer_tokens: Annotated[int, Field(ge=1, le=MOST)] = 1024

    @model_validator(mode="after")
    def _lengths_can_be_drawn(self) -> "StudyFamily":
        if self.min_chunk_tokens > self.max_chunk_tokens:
            raise ValueError(
                f"got min_chunk_tokens {self.min_chunk_tokens} over max_chunk_tokens {self.max_chunk_tokens}"
            )
        return self

    def longest_ask(self, document_tokens: int) -> int:
        return min(self.max_chunk_tokens, document_tokens) + self.max_answer_tokens

    def chunks(self, documents: list[Document], spans: Encode, description: str, seed: int) -> list[tuple[Chunk, int]]:
        return [
            (chunk, self.conversations_per_chunk)
            for document in documents
            for chunk in sample_chunks(
                document, spans, self.num_chunks, self.min_chunk_tokens, self.max_chunk_tokens, description, seed
            )
        ]


def read_prompts(family: str) -> dict[str, list[str]]:
    """The wording of a family, `prompts/<family>.md`: heading → its texts, which lines of `---` set apart.

    What stands before the first `# heading` is for people.
    """
    text = (Path(__file__).parent / "prompts" / f"{family}.md").read_text(encoding="utf-8")
    sections = [section.partition("\n") for section in f"\n{text}".split("\n# ")[1:]]
    return {heading.strip(): [one.strip() for one in body.split("\n---\n")] for heading, _, body in sections}


def system_message(template: str, chunk: Chunk) -> Message:
    """What the teacher sees before the conversation, and the student never does."""
    description = f"{chunk.description.rstrip()}\n" if chunk.description else ""
    return Message(role="system", content=template.format(description=description, chunk=chunk.text))


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


def defect_of(reply: Reply, name: str, max_tokens: int) -> str | None:
    """Why a reply that becomes somebody's prompt cannot be used: its ask was too long, it is empty, was cut, or is longer than
    was allowed.
    """
    if reply.is_too_long:
        return ASK_TOO_LONG
    if not reply.text.strip():
        return f"empty_{name}"
    if reply.finish_reason == "length":
        return f"{name}_cut"
    if not said(reply).strip():
        return f"empty_{name}"
    return f"{name}_too_long" if len(reply.token_ids) > max_tokens else None


def taught(
    context: Sequence[Message],
    conversation: Sequence[Message],
    reply: Reply,
    thinking: bool | None = None,
    scores: Sequence[float] = (),
) -> Trace:
    """The trace of a conversation and the teacher's reply to it, which the teacher wrote with `context` before it."""
    if not reply.text.strip():
        return Trace(drop_reason=ASK_TOO_LONG if reply.is_too_long else "empty_answer", scores=tuple(scores))
    return Trace(
        messages=(*conversation, assistant(reply.text)),
        reply=reply,
        teacher_messages=(*context, *conversation),
        thinking=thinking,
        scores=tuple(scores),
    )
