"""`curated`: question → answer traces that exist already; induction is the identity (ReasonCACHE, arXiv 2602.02366)."""

import json
import random
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from lpc_ray.datasets import gsm8k
from lpc_ray.errors import DataError
from lpc_ray.induction.base import Family, Steps, Unit
from lpc_ray.records import Chunk, Document, Message, Trace, digest_of
from lpc_ray.sources import Encode
from lpc_ray.textfile import read_text

_ROLES = ("system", "user", "assistant")


class Curated(Family):
    """JSONL files, one `{"messages": [...]}` per line, the last message the assistant's; or `FILE#N`: the first
    N problems of a GSM8K file, whose worked solutions answer the verifier's own prompt.
    """

    paths: Annotated[tuple[str, ...], Field(min_length=1)]

    def chunks(self, documents: list[Document], spans: Encode, description: str, seed: int) -> list[tuple[Chunk, int]]:
        lines = [line for path in self.paths for line in read_messages(Path(path))]
        origin = digest_of([document.digest for document in documents])
        return [(Chunk(document_digest=origin, text=json.dumps(line, ensure_ascii=False)), 1) for line in lines]

    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        return [Trace(messages=tuple(json.loads(unit.chunk.text)))]
        yield

    def needs_teacher(self) -> bool:
        return False


def read_messages(path: Path) -> list[list[Message]]:
    """The conversations of a JSONL file. Raises: DataError naming the line and the field."""
    if "#" in path.name:
        return [gsm8k.conversation(problem) for problem in gsm8k.first_problems(path)]
    conversations = []
    for number, line in enumerate(read_text(path, "curated traces").splitlines(), start=1):
        if line.strip():
            conversations.append(_conversation(line, where=f"curated traces {path} line {number}"))
    if not conversations:
        raise DataError(f"curated traces {path}: got an empty file, wanted one JSON object per line")
    return conversations


def _conversation(line: str, where: str) -> list[Message]:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or len(messages) < 2:
        raise DataError(f"{where}: wanted 'messages', a list of at least a user and an assistant turn")
    for message in messages:
        fits = isinstance(message, dict) and message.get("role") in _ROLES and isinstance(message.get("content"), str)
        if not fits or not message["content"].strip():
            raise DataError(f"{where}: wanted each message to have a role of {', '.join(_ROLES)} and non-empty content")
    if messages[-1]["role"] != "assistant":
        raise DataError(f"{where}: got a last message by {messages[-1]['role']}, wanted the assistant's")
    return [Message(role=message["role"], content=message["content"]) for message in messages]


FAMILY = Curated
