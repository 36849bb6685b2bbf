"""One replica: vLLM behind Ray Serve's LLMServer, with a host tier of prefixes in front of it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from copy import deepcopy
from typing import Any

import prometheus_client
from prometheus_client.metrics_core import Metric
from pydantic import ValidationError
from ray import serve
from ray.llm._internal.serve.core.configs.openai_api_models import (
    ChatCompletionRequest,
    CompletionRequest,
    ErrorResponse,
)
from ray.serve._private.common import RequestRoutingInfo
from ray.serve.context import _get_global_client
from ray.serve.llm.deployment import LLMServer
from vllm.v1.engine.exceptions import EngineDeadError

from lpc_ray.adapters.server.responses import unavailable
from lpc_ray.adapters.server.source import ArtifactSource
from lpc_ray.adapters.vllm.as_trained import as_trained
from lpc_ray.adapters.vllm.ending import end_engine
from lpc_ray.errors import ArtifactError, LPCError
from lpc_ray.model.embedded import resolve_model
from lpc_ray.model.identity import model_identity
from lpc_ray.records import PrefixRef
from lpc_ray.serving.metrics import TierMetrics
from lpc_ray.serving.own_folder import own_folder
from lpc_ray.serving.refusal import Refusal, refusal_of
from lpc_ray.serving.registry import Entry, Registry
from lpc_ray.serving.residency import HostTier
from lpc_ray.serving.rewriting import Rewriting, usage_of
from lpc_ray.serving.settings import ServerSettings
from lpc_ray.serving.sizing import served_tokens
from lpc_ray.storage import Store

_CANARY_SECONDS = 60
_ADVERTISE_SECONDS = 2
_REQUESTS = {"chat": ChatCompletionRequest, "completions": CompletionRequest}


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
        from lpc_ray.adapters.vllm.connector import DEVICE_COUNTS

        self._device_counts = DEVICE_COUNTS
        prometheus_client.REGISTRY.register(TierMetrics(self._host, DEVICE_COUNTS))
        for entry in Registry(Store(settings.registry_url)).entries().values():
            if entry.pinned:
                await self.pin(entry.digest, True)
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
        self, kind: str, body: dict[str, Any], prefixes: list[tuple[str, int]], model: str, tenant_salt: str | None
    ) -> AsyncIterator[dict[str, Any] | str]:
        """One request of `kind` (chat, completions): yields `{"status", "body"}` once, or the events of a stream.

        prefixes: digest and served tokens of each, in order. model: the name the client used.
        """
        try:
            async with self._host.lease([digest for digest, _ in prefixes]) as folders:
                found = tuple(PrefixRef(digest, str(folders[digest]), tokens) for digest, tokens in prefixes)
                rewriting = Rewriting(found, self._settings.placeholder_id, tenant_salt)
                async for item in self._generate(kind, body, rewriting, model):
                    yield item
        except Exception as error:  # as an answer: vLLM's own exceptions cannot be read where vLLM is not loaded
            refusal = refusal_of(error) if isinstance(error, LPCError) else unavailable(error)
            yield {"status": refusal.status, "body": refusal.body, "headers": refusal.headers}

    async def _generate(
        self, kind: str, body: dict[str, Any], rewriting: Rewriting, model: str
    ) -> AsyncIterator[dict[str, Any] | str]:
        try:
            named = {**body, "model": self._settings.served_name}
            wants_usage = (body.get("stream_options") or {}).get("include_usage")
            if body.get("stream"):
                named["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
            request, copy = _REQUESTS[kind](**deepcopy(named)), _REQUESTS[kind](**named)
            prompts = await self._rewrite(kind, request, copy, rewriting)
        except (LPCError, EngineDeadError):
            raise
        except Exception as error:  # nothing but the request has been looked at yet
            raise Refusal(400, "invalid_request", _first_line(error)) from error
        stream = await (self.chat(request) if kind == "chat" else self.completions(request))
        async for item in stream:
            for part in item if isinstance(item, list) else [item]:
                if isinstance(part, str):
                    event = rewriting.correct_event(part, model, prompts)
                    usage = usage_of(event)
                    if usage is not None:
                        yield {"usage": usage}
                    if usage is None or wants_usage:
                        yield event
                elif isinstance(part, ErrorResponse):
                    refusal = Refusal(int(part.error.code), "invalid_request", part.error.message, part.error.param)
                    yield {"status": refusal.status, "body": refusal.body, "headers": refusal.headers}
                else:
                    answer = rewriting.correct(part.model_dump(mode="json"), prompts)
                    yield {"status": 200, "body": {**answer, "model": model}, "headers": {}}

    async def _rewrite(self, kind: str, request: Any, copy: Any, rewriting: Rewriting) -> int:
        """Put placeholders before the prompt, as vLLM renders it from the copy; returns the number of prompts."""
        request.cache_salt = rewriting.cache_salt
        request.kv_transfer_params = transfer = rewriting.transfer_params
        if kind == "chat":
            renderer = as_trained(self._vllm._oai_serving_chat.online_renderer, [request, copy], rewriting.prefixes)
            rendered = await renderer.render_chat(copy)
            inputs = rendered[1] if isinstance(rendered, tuple) else rendered
        else:
            inputs = await self._vllm._oai_serving_completion.online_renderer.render_completion(copy)
        if not isinstance(inputs, list):
            raise Refusal(int(inputs.error.code), "invalid_request", inputs.error.message, inputs.error.param)
        prompts = [list(one["prompt_token_ids"]) for one in inputs]
        self._check_vocabulary("prompt", [token for prompt in prompts for token in prompt])
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            self._check_vocabulary(name, map(int, getattr(request, name, None) or ()))
        asked = request.max_tokens if kind == "completions" else request.max_completion_tokens or request.max_tokens
        for prompt in prompts:
            rewriting.check_room(len(prompt), asked, self._settings.max_model_len)
        request.truncate_prompt_tokens = None
        if kind == "completions":
            request.prompt = [rewriting.token_ids(prompt) for prompt in prompts]
        elif transfer is not None:
            request.kv_transfer_params = {**transfer, "prompt_token_ids": rewriting.token_ids(prompts[0])}
        return len(prompts)

    def _check_vocabulary(self, field: str, token_ids: Iterable[int]) -> None:
        """Raises: Refusal 400 for an id that the model has no row for, which would end the engine."""
        size = self._vllm._engine_client.vllm_config.model_config.get_vocab_size()
        odd = next((token for token in token_ids if not 0 <= token < size), None)
        if odd is not None:
            raise Refusal(400, "no_such_token", f"{field}: got token {odd}, wanted 0 to {size - 1}", param=field)

    async def bring(self, digest: str, align: str) -> dict[str, Any]:
        """Load a prefix into the host tier and prove it; returns `{"entry"}`, or `{"refusal"}` and nothing has changed.

        align: exact, or down to whole blocks of the engine.
        """
        try:
            manifest = await asyncio.to_thread(self._source.manifest, digest)
            tokens = served_tokens(
                manifest.num_tokens, self._vllm._engine_client.vllm_config.cache_config.block_size, align
            )
            if tokens >= self._settings.max_model_len:
                raise ArtifactError(
                    f"prefix {digest}: got {tokens} tokens, wanted fewer than the context of {self._settings.max_model_len}"
                )
            async with self._host.lease([digest]) as folders:
                await self._prove(PrefixRef(digest, str(folders[digest]), tokens))
            return {"entry": Entry(digest, manifest.kind, tokens, manifest.num_bytes)}
        except LPCError as error:
            return {"refusal": refusal_of(error)}

    async def _prove(self, prefix: PrefixRef) -> None:
        """A request that must have its prefix from the connector: without one the placeholders would be read as text.

        Raises: ArtifactError.
        """
        if prefix.digest in self._proven:
            return
        before = self._device_counts["hits"] + self._device_counts["misses"]
        body = {"prompt": [self._settings.placeholder_id + 1], "max_tokens": 1, "temperature": 0}
        async with asyncio.timeout(_CANARY_SECONDS):
            async for item in self._generate("completions", body, Rewriting((prefix,)), "canary"):
                if not isinstance(item, dict) or item["status"] != 200:
                    raise ArtifactError(f"prefix {prefix.digest}: the canary request failed: {item}")
            while self._device_counts["hits"] + self._device_counts["misses"] == before:
                await asyncio.sleep(0.01)
        self._proven.add(prefix.digest)

    async def pin(self, digest: str, pinned: bool) -> None:
        await (self._host.pin(digest) if pinned else self._host.unpin(digest))

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


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
