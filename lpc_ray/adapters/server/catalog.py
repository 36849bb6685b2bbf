"""The prefixes that a server knows, and what its replicas hold of them: loading, moving, pinning and dropping."""

import asyncio
import logging
from bisect import bisect_right
from typing import Any

from ray.serve.handle import DeploymentHandle

from lpc_ray.adapters.server.responses import unavailable
from lpc_ray.errors import LPCError
from lpc_ray.serving.registry import Registry
from lpc_ray.serving.tables import Entry

logger = logging.getLogger("ray.serve")
_WARMED = 8  # prefixes of the settings that are loaded at the start
_PIN_SECONDS = 5


class Catalog:
    """The registry, and the replicas that are told of its changes. Belongs to one event loop.

    Raises: LPCError: what a replica refuses, and Refusal 503 when one does not answer.
    """

    def __init__(self, registry: Registry, server: DeploymentHandle):
        self.registry, self._server = registry, server
        self.notices: list[str] = []

    async def start(self, named: dict[str, str]) -> None:
        """Load the handles and digests that the settings name, unless an admin has changed them since; `notices` then has
        a line for each that serves something else. From then on replicas that are new pin what the others have.
        """
        wanted, self.notices = self.registry.to_load(named)
        found = await self._described(wanted)
        fit = {handle: entry for handle, entry in found.items() if isinstance(entry, Entry)}
        refused = {handle: error for handle, error in found.items() if not isinstance(error, Entry)}
        for handle in list(fit)[:_WARMED]:
            try:
                await self._bring(fit[handle].digest, "exact")
            except LPCError as error:
                refused[handle] = error
                del fit[handle]
        await self.registry.move_all(fit)
        await self.registry.configured({handle: digest for handle, digest in named.items() if handle not in refused})
        self.notices += [f"prefix {handle}: not served: {error}" for handle, error in refused.items()]
        for line in self.notices:
            logger.warning("%s", line)
        self._pinner = asyncio.create_task(self._keep_pins())

    def after(self, handle: str) -> list[str]:
        """The handles after `handle`, in order; all of them after ""."""
        handles = self.registry.handles()
        return handles[bisect_right(handles, handle) :]

    async def rows(self, handles: list[str]) -> list[dict[str, Any]]:
        """A line for each handle: where its prefix is and how it was used, over all replicas."""
        held = dict(await self.everywhere("residents"))
        known = self.registry.entries()
        return [_row(handle, known[handle], held) for handle in handles if handle in known]

    async def load(self, handle: str, digest: str, align: str, pinned: bool) -> Entry | None:
        """Load, prove, and only then let the handle point there; returns what it pointed to. When it is refused, the handle
        is as it was.
        """
        entry = await self._bring(digest, align)
        previous = await self.registry.move(handle, entry)
        if pinned or self.registry[handle].pinned:
            await self.pin(handle)
        if previous is not None and previous.pinned and previous.digest != digest:
            await self._unpin_unless_named(previous.digest)
        if align == "down":
            logger.warning(
                "prefix %s is served under %s with %d tokens (align: down)", digest, handle, entry.num_tokens
            )
        return previous

    async def unload(self, handle: str) -> Entry:
        entry = await self.registry.remove(handle)
        if entry.pinned:
            await self._unpin_unless_named(entry.digest)
        if not self.registry.names(entry.digest):
            await self.everywhere("drop", entry.digest)
        return entry

    async def pin(self, handle: str) -> None:
        await self.everywhere("pin", self.registry[handle].digest, True)
        await self.registry.pin(handle, True)

    async def unpin(self, handle: str) -> None:
        entry = await self.registry.pin(handle, False)
        await self._unpin_unless_named(entry.digest)

    async def everywhere(self, method: str, *arguments: Any) -> list[Any]:
        """What every replica answers."""
        try:
            return await self._server.broadcast(method, *arguments).results_async(timeout_s=120)
        except Exception as error:  # Ray's errors of dead replicas have no common base
            raise unavailable(error) from None

    async def _described(self, wanted: dict[str, str]) -> dict[str, Entry | LPCError]:
        if not wanted:
            return {}
        try:
            return await self._server.describe.remote(wanted)
        except Exception as error:
            raise unavailable(error) from None

    async def _bring(self, digest: str, align: str) -> Entry:
        """What a handle for `digest` would point to, loaded and proven by one replica."""
        try:
            reply = await self._server.options(multiplexed_model_id=digest).bring.remote(digest, align)
        except Exception as error:
            raise unavailable(error) from None
        if isinstance(reply, LPCError):
            raise reply
        return reply

    async def _unpin_unless_named(self, digest: str) -> None:
        """Let replicas evict `digest`, unless another handle that points to it is pinned."""
        if not any(self.registry[handle].pinned for handle in self.registry.names(digest)):
            await self.everywhere("pin", digest, False)

    async def _keep_pins(self) -> None:
        while True:
            await asyncio.sleep(_PIN_SECONDS)
            pinned = self.registry.pinned()
            try:
                if pinned:
                    await self.everywhere("keep_pinned", sorted(pinned))
            except LPCError as error:
                logger.warning("pins could not be kept everywhere: %s", error)


def _row(handle: str, entry: Entry, held: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """One line of the list: where the prefix is and how it was used, over all replicas."""
    found = {replica: tier[entry.digest] for replica, tier in held.items() if entry.digest in tier}
    return {
        "id": handle,
        "digest": entry.digest,
        "kind": entry.kind,
        "num_tokens": entry.num_tokens,
        "bytes": entry.num_bytes,
        "pinned": entry.pinned,
        "tier": "host" if found else "store",
        "replicas": sorted(found),
        "hits": sum(int(one["hits"]) for one in found.values()),
        "last_used": max((one["last_used"] for one in found.values()), default=None),
        "cold_load_seconds": max((one["cold_load_seconds"] for one in found.values()), default=None),
    }
