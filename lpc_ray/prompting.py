"""How a student's conversation opens; the same for traces, verification and serving."""

from collections.abc import Sequence

from lpc_ray.records import Message


def with_system(messages: Sequence[Message], system: str | None) -> list[Message]:
    """`messages` after the system message `system`, unless it is None or they bring their own."""
    if system is None or (messages and messages[0]["role"] == "system"):
        return list(messages)
    return [Message(role="system", content=system), *messages]
