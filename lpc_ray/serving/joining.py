"""Events of one stream, joined while they wait: the first goes at once, later ones together when many streams are open."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

ITEMS_PER_SECOND = 2000  # what one process hands to another without being busy with it


async def joined(events: AsyncIterator[str], open_streams: Callable[[], int]) -> AsyncIterator[str]:
    """What `events` yields, concatenated in order, at most once per `open_streams() / ITEMS_PER_SECOND` seconds.

    Raises: what `events` raises, after what came before it. The source is closed when this is.
    """
    waiting: list[str] = []
    arrived = asyncio.Event()

    async def read() -> None:
        try:
            async for event in events:
                waiting.append(event)
                arrived.set()
        finally:
            arrived.set()

    reader = asyncio.create_task(read())
    try:
        while not reader.done() or waiting:
            await arrived.wait()
            arrived.clear()
            if waiting:
                sent = time.monotonic()
                text = "".join(waiting)
                waiting.clear()
                yield text
                pause = open_streams() / ITEMS_PER_SECOND - (time.monotonic() - sent)
                if pause > 0 and not reader.done():
                    await asyncio.wait([reader], timeout=pause)
        reader.result()
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
