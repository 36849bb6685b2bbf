"""vLLM's own server with prefixes: `model="MODEL:handle"` is answered from a library of LPCs.

`PrefixEndpoints` stands before vLLM's chat and text completions; `lpc_ray.adapters.vllm.plugin` says how it is started. There
is one tenant: whoever reaches the server may use every handle. Requests of vLLM's other endpoints go past it; there the
connector takes no prefix but the library's.
"""

import asyncio
from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse, ModelCard

from lpc_ray.adapters.vllm.front import Front, corrected, corrected_answer
from lpc_ray.adapters.vllm.plugin import CONNECTOR
from lpc_ray.artifacts.handles import ARTIFACTS, find_digest, handle_names
from lpc_ray.artifacts.store import fetch, load_prefix, stored_manifest
from lpc_ray.errors import ConfigError, LPCError
from lpc_ray.model.embedded import prefix_cache
from lpc_ray.model.identity import ModelIdentity, model_identity
from lpc_ray.records import PrefixRef
from lpc_ray.serving.contract import check_own_fields
from lpc_ray.serving.handles import parse_model
from lpc_ray.serving.refusal import refusal_of
from lpc_ray.serving.rewriting import Rewriting, check_request
from lpc_ray.storage import Store

Create = Callable[..., Awaitable[Any]]


class Library:
    """The prefixes of one model in a library, each checked once in this process. Blocking; for use in threads."""

    def __init__(self, url: str, identity: ModelIdentity):
        self._store, self._identity = Store(url), identity
        self._checked: dict[str, PrefixRef] = {}

    def prefix(self, handle: str) -> PrefixRef:
        """Raises: PrefixNotFoundError, ArtifactError for another model's or a damaged one, StorageError."""
        digest = find_digest(self._store, handle)
        if digest not in self._checked:
            folder = fetch(self._store / ARTIFACTS, digest, prefix_cache())
            manifest, _, _ = load_prefix(folder, self._identity)
            self._checked[digest] = PrefixRef(digest, str(folder), manifest.num_tokens)
        return self._checked[digest]

    def cards(self) -> list[tuple[str, str]]:
        """Each handle for a prefix of this model, and its digest."""
        found = []
        for handle in handle_names(self._store):
            try:
                manifest = stored_manifest(self._store / ARTIFACTS, find_digest(self._store, handle))
            except LPCError:
                continue  # a list has no room for errors; a request for this handle is told what is wrong
            if manifest.identity.compared() == self._identity.compared():
                found.append((handle, manifest.digest))
        return found


class PrefixEndpoints:
    """vLLM's `EndpointPlugin`: no routes of its own, but prefixes in those that are there."""

    name = "lpc"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Nothing: the routes are vLLM's."""

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Raises: ConfigError when vLLM was started without the connector or a library."""
        if engine_client is None:
            return
        config = engine_client.vllm_config
        transfer = config.kv_transfer_config
        library = transfer and transfer.kv_connector_extra_config.get("library")
        if transfer is None or transfer.kv_connector != CONNECTOR or not library:
            raise ConfigError(
                f"VLLM_PLUGINS=lpc: wanted --kv-transfer-config with kv_connector {CONNECTOR} and a library in "
                f"kv_connector_extra_config; got {transfer and (transfer.kv_connector, transfer.kv_connector_extra_config)}"
            )
        identity = await asyncio.to_thread(model_identity, config.model_config.model, config.model_config.revision)
        models = state.openai_serving_models
        base = models.base_model_paths[0].name
        front = Front(engine_client, state.openai_serving_chat, state.openai_serving_completion, base)
        serving = _Serving(front, Library(library, identity), base)
        chat, completions = state.openai_serving_chat, state.openai_serving_completion
        chat.create_chat_completion = serving.before("chat", chat.create_chat_completion)
        completions.create_completion = serving.before("completions", completions.create_completion)
        models.show_available_models = serving.listing(models.show_available_models)


class _Serving:
    """Stands before vLLM's handlers; what names no prefix passes as it is."""

    def __init__(self, front: Front, library: Library, base: str):
        self._front, self._library, self._base = front, library, base

    def before(self, kind: str, create: Create) -> Create:
        async def answer(request: Any, raw_request: Any = None) -> Any:
            try:
                check_own_fields(request.kv_transfer_params, request.cache_salt)
                if not str(request.model).startswith(f"{self._base}:"):
                    return await create(request, raw_request)
                return await self._answer(kind, create, request, raw_request)
            except LPCError as error:
                refusal = refusal_of(error)
                info = ErrorInfo(message=str(refusal), type=refusal.code, param=refusal.param, code=refusal.status)
                return ErrorResponse(error=info)

        return answer

    async def _answer(self, kind: str, create: Create, request: Any, raw_request: Any) -> Any:
        body = check_request(request.model_dump(exclude_unset=True), self._front.context_tokens)
        name = parse_model(request.model, self._base)
        found = [await asyncio.to_thread(self._library.prefix, handle) for handle in name.handles]
        rewriting = Rewriting(tuple(found), self._front.placeholder)
        prepared, prompts = await self._front.prepare(kind, body, rewriting)
        answer = await create(prepared, raw_request)
        if isinstance(answer, ErrorResponse):
            return answer
        if prepared.stream:
            return corrected(answer, rewriting, request.model, prompts)
        return type(answer)(**corrected_answer(answer, rewriting, request.model, prompts))

    def listing(self, show: Create) -> Create:
        async def models() -> Any:
            found = await show()
            for handle, digest in await asyncio.to_thread(self._library.cards):
                found.data.append(ModelCard(id=f"{self._base}:{handle}", parent=self._base, root=digest))
            return found

        return models
