"""JSONL files of conversations: chat messages, or GSM8K's questions with worked answers."""

from pathlib import Path
from typing import Any, NamedTuple

from lpc_ray.errors import DataError
from lpc_ray.records import Message
from lpc_ray.sources import gsm8k
from lpc_ray.sources.text import read_rows

_ROLES = ("system", "user", "assistant")


class Task(NamedTuple):
    """A question and every accepted form of its answer."""

    question: str
    answers: list[str]


def read_conversations(path: str | Path) -> list[list[Message]]:
    """Conversations that end with the assistant's message: `{"messages": […]}`, or `{"question": …, "answer": …}`.

    A question whose answer ends in `#### N` is GSM8K's: it is asked in the verifier's own words, and the calculator's marks
    (`<<48/2=24>>`), which are no text that a model would write, are taken out of the answer.
    Raises: DataError naming the line and the field.
    """
    return [_conversation(row, where) for where, row in read_rows(Path(path), "curated traces")]


def read_openings(path: str | Path) -> list[list[Message]]:
    """Conversations that end with the user's message: as above, without a last answer, or `{"prompt": …}`.

    Raises: DataError naming the line and the field.
    """
    return [_opening(row, where) for where, row in read_rows(Path(path), "general prompts")]


def read_tasks(path: str | Path) -> list[Task]:
    """Questions with known answers: `{"question": …, "answers": […]}`, or GSM8K's, whose answer follows `####`.

    Raises: DataError naming the line and the field.
    """
    return [_task(row, where) for where, row in read_rows(Path(path), "tasks")]


def _conversation(row: dict[str, Any], where: str) -> list[Message]:
    if "messages" not in row and "question" in row:
        question, answer = _text(row, "question", where), _text(row, "answer", where)
        if gsm8k.marked_number(answer) is not None:
            return gsm8k.conversation(gsm8k.problem(row, where))
        return [Message(role="user", content=question), Message(role="assistant", content=answer)]
    messages = _messages(row, where)
    if len(messages) < 2:
        raise DataError(f"{where}: wanted 'messages', a list of at least a user and an assistant turn")
    if messages[-1]["role"] != "assistant":
        raise DataError(f"{where}: got a last message by {messages[-1]['role']}, wanted the assistant's")
    return messages


def _opening(row: dict[str, Any], where: str) -> list[Message]:
    for field in ("prompt", "question"):
        if "messages" not in row and field in row:
            return [Message(role="user", content=_text(row, field, where))]
    messages = _messages(row, where)
    if messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages or messages[-1]["role"] != "user":
        raise DataError(f"{where}: wanted a user's message to answer, last or before the assistant's")
    return messages


def _task(row: dict[str, Any], where: str) -> Task:
    question = _text(row, "question", where)
    if "answers" not in row:
        _text(row, "answer", where)
        problem = gsm8k.problem(row, where)
        return Task(gsm8k.prompt(question), [str(problem.answer)])
    answers = row["answers"]
    if not isinstance(answers, list) or not answers or not all(isinstance(one, str) and one.strip() for one in answers):
        raise DataError(f"{where}: field 'answers' must be a list of non-empty texts")
    return Task(question, answers)


def _messages(row: dict[str, Any], where: str) -> list[Message]:
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: wanted 'messages', a list of chat messages")
    for message in messages:
        fits = isinstance(message, dict) and message.get("role") in _ROLES and isinstance(message.get("content"), str)
        if not fits or not message["content"].strip():
            raise DataError(f"{where}: wanted each message to have a role of {', '.join(_ROLES)} and non-empty content")
    turns = [message["role"] for message in messages if message["role"] != "system"]
    if turns != ["user" if place % 2 == 0 else "assistant" for place in range(len(turns))]:
        raise DataError(
            f"{where}: got turns by {', '.join(turns)}, wanted user and assistant in turn, the user's first"
        )
    return [Message(role=message["role"], content=message["content"]) for message in messages]


def _text(row: dict[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: field {field!r} is missing, empty or no text")
    return value.strip()
