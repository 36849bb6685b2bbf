"""Bodies in, events out: what every route of the ingress needs of HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse

from lpc_ray.errors import LPCError
from lpc_ray.serving.refusal import Refusal, refusal_of
from lpc_ray.serving.rewriting import too_large

logger = logging.getLogger("ray.serve")
BODY_SECONDS = 30


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


async def events(first: str, rest: AsyncIterator[Any]) -> AsyncIterator[str]:
    """The events of an answer that has begun."""
    yield first
    try:
        async for item in rest:
            yield item if isinstance(item, str) else _event(item["body"])
    except Exception as error:  # the head is sent: only the stream can carry the error
        yield _event(refusal_of(unavailable(error)).body)


def _event(body: dict[str, Any]) -> str:
    return f"data: {bytes(JSONResponse(body).body).decode()}\n\n"


async def first_of(items: AsyncIterator[Any]) -> Any:
    """The first item. Raises: Refusal 503 when the replica or its engine died."""
    try:
        return await anext(items)
    except Exception as error:  # Ray's errors of dead replicas have no common base
        raise unavailable(error) from None


def unavailable(error: Exception) -> LPCError:
    """What to tell a client: the library's own error, if a replica raised one, else that something failed."""
    cause = getattr(error, "cause", error)  # Ray's errors of remote calls hold the traceback, process and address
    if isinstance(cause, LPCError):
        return cause
    logger.error("a replica failed: %s: %s", type(error).__name__, error)
    return Refusal(503, "replica_failed", "the engine that had this request failed; try again", retry_after=5)


async def read_body(request: Request, most: int) -> bytes:
    """The body, of at most `most` bytes. Raises: Refusal 413, and 408 for one that does not arrive in time."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > most:
        raise too_large(int(declared), most)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    raise too_large(size, most)
                chunks.append(chunk)
    except TimeoutError:
        message = f"got {size} bytes of a body, wanted all of it within {BODY_SECONDS} seconds"
        raise Refusal(408, "body_too_slow", message) from None
    return b"".join(chunks)
