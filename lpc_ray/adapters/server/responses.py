"""Bodies in, events out: what every route of the ingress needs of HTTP."""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse

from lpc_ray.errors import LPCError
from lpc_ray.serving.refusal import Refusal
from lpc_ray.serving.rewriting import MAX_BODY_BYTES, too_large

logger = logging.getLogger("ray.serve")


class EventStream(StreamingResponse):
    """Server-sent events; `release` is called however the response ends, also when the client left before it began."""

    def __init__(self, events: AsyncIterator[str], release: Callable[[], None]):
        super().__init__(events, media_type="text/event-stream")
        self._release = release

    async def __call__(self, scope, receive, send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


async def events(
    first: str, rest: AsyncIterator[Any], on_usage: Callable[[dict[str, Any]], None]
) -> AsyncIterator[str]:
    """The events of an answer that has begun; on_usage: called with its usage, whether or not the client asked for it."""
    yield first
    try:
        async for item in rest:
            if isinstance(item, dict) and "usage" in item:
                on_usage(item["usage"])
            else:
                yield item if isinstance(item, str) else _event(item["body"])
    except Exception as error:  # the head is sent: only the stream can carry the error
        yield _event(unavailable(error).body)


def _event(body: dict[str, Any]) -> str:
    return f"data: {bytes(JSONResponse(body).body).decode()}\n\n"


async def first_of(items: AsyncIterator[Any]) -> Any:
    """The first item. Raises: Refusal 503 when the replica or its engine died."""
    try:
        return await anext(items)
    except LPCError:
        raise
    except Exception as error:  # Ray's errors of dead replicas have no common base
        raise unavailable(error) from error


def unavailable(error: Exception) -> Refusal:
    logger.error("a replica failed: %s: %s", type(error).__name__, error)
    return Refusal(503, "replica_failed", "the engine that had this request failed; try again", retry_after=5)


async def read_body(request: Request) -> bytes:
    """The body, at most 4 MiB of it. Raises: Refusal 413."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise too_large(int(request.headers.get("content-length") or size))
        chunks.append(chunk)
    return b"".join(chunks)
