"""One replica: vLLM behind Ray Serve's LLMServer, with a host tier of prefixes in front of it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import prometheus_client
from prometheus_client.metrics_core import Metric
from ray import serve
from ray.llm._internal.serve.core.configs.openai_api_models import ChatCompletionRequest, CompletionRequest
from ray.serve._private.common import RequestRoutingInfo
from ray.serve.context import _get_global_client
from ray.serve.llm.deployment import LLMServer

from lpc_ray.adapters.server.metering import Meter, new_meter, watch
from lpc_ray.adapters.server.responses import unavailable
from lpc_ray.adapters.server.source import ArtifactSource
from lpc_ray.adapters.vllm.ending import end_engine, unlink_queues
from lpc_ray.adapters.vllm.front import Front, corrected, corrected_answer
from lpc_ray.errors import ArtifactError, LPCError
from lpc_ray.model.embedded import resolve_model
from lpc_ray.model.identity import model_identity
from lpc_ray.records import PrefixRef
from lpc_ray.serving.joining import joined
from lpc_ray.serving.metrics import TierMetrics, TokenMetrics
from lpc_ray.serving.own_folder import own_folder
from lpc_ray.serving.refusal import client_refusal_of, refusal_of
from lpc_ray.serving.residency import HostTier, Lease
from lpc_ray.serving.rewriting import Rewriting, sequences_of
from lpc_ray.serving.settings import ServerSettings
from lpc_ray.serving.sizing import served_tokens
from lpc_ray.serving.tables import Entry
from lpc_ray.storage import Store

logger = logging.getLogger("ray.serve")
_CANARY_SECONDS = 60
_ADVERTISE_SECONDS = 2
_READERS = 16


@asynccontextmanager
async def _ended_once_read(lease: Lease, meter: Meter) -> AsyncIterator[None]:
    """While the block runs: the lease ends as soon as every reply has begun, for its prefixes stand in the engine's blocks."""

    async def end() -> None:
        await meter.has_begun.wait()
        await lease.end()

    ending = asyncio.create_task(end())
    try:
        yield
    finally:
        if not meter.has_begun.is_set():
            ending.cancel()


class PrefixServer(LLMServer):
    """Answers requests that name their prefixes by digest; every one it loads is first proven by a canary request."""

    async def __init__(self, llm_config, settings: ServerSettings):
        self._settings = settings
        identity = model_identity(resolve_model(settings.model), settings.revision)
        self._source = ArtifactSource(Store(settings.artifacts), identity, settings.require_gate)
        self._replica = serve.get_replica_context().replica_id
        folder = own_folder(settings.host_tier, self._replica.unique_id)
        self._host = HostTier(folder, settings.host_tier_bytes, self._source, on_change=self._advertise)
        self._proven: set[str] = set()
        await super().__init__(llm_config)
        unlink_queues()
        from lpc_ray.adapters.vllm.connector import DEVICE_COUNTS

        self._device_counts = DEVICE_COUNTS
        self._tokens, self._open_requests = TokenMetrics(prometheus_client.REGISTRY), 0
        prometheus_client.REGISTRY.register(TierMetrics(self._host, DEVICE_COUNTS))
        watch(self._vllm._engine_client.output_processor)
        self._front = Front(
            self._vllm._engine_client,
            self._vllm._oai_serving_chat,
            self._vllm._oai_serving_completion,
            settings.served_name,
            {"chat": ChatCompletionRequest, "completions": CompletionRequest},
        )
        self._advertiser = asyncio.create_task(self._keep_advertising())

    async def __del__(self) -> None:
        """Called by Serve when the replica is to end; Ray's own server leaves vLLM's processes to be killed."""
        await super().__del__()
        await asyncio.to_thread(end_engine, getattr(getattr(self, "engine", None), "_engine_client", None))

    @property
    def _vllm(self) -> Any:
        """The engine, once started: Ray types it as its protocol, which lacks vLLM's renderers and client."""
        return self.engine

    async def answer(
        self, kind: str, body: dict[str, Any], prefixes: list[tuple[str, int]], model: str, tenant: str, shares: bool
    ) -> AsyncIterator[dict[str, Any] | str]:
        """One request of `kind` (chat, completions): yields `{"status", "body"}` once, or the events of a stream.

        prefixes: digest and served tokens of each, in order. model: the name the client used. shares: whether the tenant's
        blocks are shared with other tenants that share theirs.
        """
        meter, rewriting = new_meter(sequences_of(body)), Rewriting()
        self._open_requests += 1
        try:
            async with (
                self._host.lease([digest for digest, _ in prefixes]) as folders,
                _ended_once_read(folders, meter),
            ):
                found = tuple(PrefixRef(digest, str(folders[digest]), tokens) for digest, tokens in prefixes)
                if found and not self._proven:
                    await self._prove(found[0])
                rewriting = Rewriting(found, self._front.placeholder, None if shares else tenant)
                async for item in self._generate(kind, body, rewriting, model):
                    yield item
        except Exception as error:  # as an answer: vLLM's own exceptions cannot be read where vLLM is not loaded
            refusal = client_refusal_of(unavailable(error))
            yield {"status": refusal.status, "body": refusal.body, "headers": refusal.headers}
        finally:
            self._open_requests -= 1
            hidden = rewriting.prefix_tokens * meter.prompts
            own, handle = meter.prompt_tokens - hidden, model.partition(":")[2].partition("+")[0]
            self._tokens.count(handle, tenant, own, hidden, meter.completion_tokens)

    async def _generate(
        self, kind: str, body: dict[str, Any], rewriting: Rewriting, model: str
    ) -> AsyncIterator[dict[str, Any] | str]:
        request, prompts = await self._front.prepare(kind, body, rewriting)
        stream: Any = await (self.chat(request) if kind == "chat" else self.completions(request))
        if request.stream:
            events = corrected(stream, rewriting, model, prompts)
            async for text in joined(events, lambda: self._open_requests):
                yield text
            return
        async for answer in stream:
            yield {"status": 200, "body": corrected_answer(answer, rewriting, model, prompts), "headers": {}}

    async def bring(self, digest: str, align: str) -> Entry | LPCError:
        """Load a prefix into the host tier and prove it; an error as a value, and nothing has changed.

        align: exact, or down to whole blocks of the engine.
        """
        try:
            entry = await asyncio.to_thread(self._describe, digest, align)
            async with self._host.lease([digest]) as folders:
                await self._prove(PrefixRef(digest, str(folders[digest]), entry.num_tokens))
            return entry
        except LPCError as error:
            return refusal_of(error)

    async def describe(self, named: dict[str, str]) -> dict[str, Entry | LPCError]:
        """Handle → what it would point to, by the manifest of its digest alone."""

        def described(digest: str) -> Entry | LPCError:
            try:
                return self._describe(digest, "exact")
            except LPCError as error:
                return refusal_of(error)

        def all_described() -> dict[str, Entry | LPCError]:
            with ThreadPoolExecutor(_READERS) as readers:
                return dict(zip(named, readers.map(described, named.values()), strict=True))

        return await asyncio.to_thread(all_described)

    def _describe(self, digest: str, align: str) -> Entry:
        """Blocking. Raises: LPCError."""
        manifest = self._source.manifest(digest)
        tokens = served_tokens(manifest.num_tokens, self._front.block_size, align)
        if tokens >= self._settings.max_model_len:
            raise ArtifactError(
                f"prefix {digest}: got {tokens} tokens, wanted fewer than the context of {self._settings.max_model_len}"
            )
        return Entry(digest, manifest.kind, tokens, manifest.num_bytes)

    async def _prove(self, prefix: PrefixRef) -> None:
        """A request that must have its prefix from the connector: without one the placeholders would be read as text.

        Raises: ArtifactError.
        """
        if prefix.digest in self._proven:
            return
        before = self._device_counts["hits"] + self._device_counts["misses"]
        body = {"prompt": [0], "max_tokens": 1, "temperature": 0}
        async with asyncio.timeout(_CANARY_SECONDS):
            async for item in self._generate("completions", body, Rewriting((prefix,)), "canary"):
                if not isinstance(item, dict) or item["status"] != 200:
                    raise ArtifactError(f"prefix {prefix.digest}: the canary request failed: {item}")
            while self._device_counts["hits"] + self._device_counts["misses"] == before:
                await asyncio.sleep(0.01)
        self._proven.add(prefix.digest)

    async def is_well(self) -> bool:
        """Whether the engine can answer."""
        return not self._vllm._engine_client.errored

    async def pin(self, digest: str, pinned: bool) -> None:
        await (self._host.pin(digest) if pinned else self._host.unpin(digest))

    async def keep_pinned(self, digests: list[str]) -> None:
        """Pin those that are not; what is there no more, or unfit, keeps nothing else from being served."""
        for digest in digests:
            try:
                await self.pin(digest, True)
            except LPCError as error:
                logger.error("prefix %s is pinned, but could not be loaded: %s", digest, error)

    async def drop(self, digest: str) -> None:
        await self._host.drop(digest)

    async def residents(self) -> tuple[str, dict[str, dict[str, float]]]:
        """This replica's id, and digest → bytes, hits, last use and cold-load seconds of what its host tier holds."""
        return self._replica.unique_id, {
            digest: {
                "bytes": resident.num_bytes,
                "hits": resident.hits,
                "last_used": resident.last_used,
                "cold_load_seconds": resident.load_seconds,
            }
            for digest, resident in self._host.residents().items()
        }

    async def samples(self) -> tuple[str, list[Metric]]:
        """This replica's id and its Prometheus metrics, the engine's own among them."""
        return self._replica.unique_id, list(prometheus_client.REGISTRY.collect())

    async def _maybe_resolve_lora_from_multiplex(self) -> None:
        """Multiplexed ids are digests of prefixes here, not adapters."""

    async def _keep_advertising(self) -> None:
        """Serve's controller may have been away, or not have known this replica yet, when something changed."""
        while True:
            await asyncio.sleep(_ADVERTISE_SECONDS)
            self._advertise()

    def _advertise(self) -> None:
        """Tell Serve's router what this replica holds, as `serve.multiplexed` would for models it loads itself."""
        info = RequestRoutingInfo(replica_id=self._replica, multiplexed_model_ids=list(self._host.residents()))
        client = _get_global_client()
        assert client is not None, "a replica runs in a process that knows Serve's controller"
        client.record_request_routing_info(info)
