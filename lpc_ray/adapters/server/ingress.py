"""The HTTP side: OpenAI's API, management, metrics and the page. Loads neither vLLM nor torch."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from lpc_ray.adapters.server.catalog import Catalog
from lpc_ray.adapters.server.responses import EventStream, events, first_of, read_body
from lpc_ray.errors import LPCError
from lpc_ray.serving.doors import Door, KeyedDoor, LocalDoor
from lpc_ray.serving.handles import ModelName, check_handle, check_new_handle, parse_model
from lpc_ray.serving.metrics import RequestMetrics, merged
from lpc_ray.serving.refusal import Refusal, refusal_of
from lpc_ray.serving.registry import Registry
from lpc_ray.serving.rewriting import check_request, json_body, sequences_of
from lpc_ray.serving.settings import ServerSettings
from lpc_ray.serving.tables import Entry, open_table
from lpc_ray.serving.tenants import Concurrency, KeyFile, Tenant, require_admin, require_client, require_metrics
from lpc_ray.storage import Store

logger = logging.getLogger("ray.serve")
app = FastAPI(title="lpc_ray", docs_url=None, redoc_url=None, openapi_url=None)
DRAIN_SECONDS = 100
MOST_ROWS = 10_000
_LARGE_BODY = 64 << 10
_READY_SECONDS = 2.0  # how long what the engines said of themselves holds
_PAGE = Path(__file__).parent / "page.html"


class Origins(CORSMiddleware):
    """Pages of other hosts that a browser lets call this server; `allowed` is set before the first request."""

    allowed: ClassVar[tuple[str, ...]] = ()

    def __init__(self, app: Any):
        super().__init__(app, self.allowed, allow_methods=["GET", "POST", "PUT", "DELETE"], allow_headers=["*"])


app.add_middleware(Origins)


@app.exception_handler(LPCError)
async def _refused(request: Request, error: LPCError) -> Response:
    refusal = refusal_of(error)
    return JSONResponse(refusal.body, refusal.status, refusal.headers)


@app.exception_handler(HTTPException)
async def _no_route(request: Request, error: HTTPException) -> Response:
    refusal = Refusal(error.status_code, "no_such_route", f"{request.method} {request.url.path}: {error.detail}")
    return JSONResponse(refusal.body, refusal.status)


class Ingress:
    """The one replica of the HTTP side; it owns the registry of handles and counts tenants' open requests."""

    async def __init__(self, server: DeploymentHandle, settings: ServerSettings, admin_key_digest: bytes | None):
        """admin_key_digest: SHA-256 of the key that manages a server without a key file."""
        self._settings, self._base, self._server = settings, settings.served_name, server
        self._door, Origins.allowed = _door(settings, admin_key_digest), settings.origins
        self._ready = (0.0, False)
        self._gate, self._metrics, self._draining = Concurrency(), RequestMetrics(), False
        self._streams: dict[str, DeploymentHandle] = {}
        self._catalog = Catalog(Registry(open_table(Store(settings.registry_url))), server)
        await self._catalog.start(settings.prefixes)

    async def notices(self) -> list[str]:
        """What the settings named and is not served so."""
        return self._catalog.notices

    @app.post("/v1/chat/completions")
    async def chat(self, request: Request) -> Response:
        return await self._complete(request, "chat")

    @app.post("/v1/completions")
    async def completions(self, request: Request) -> Response:
        return await self._complete(request, "completions")

    async def _complete(self, request: Request, kind: str) -> Response:
        started = time.perf_counter()
        tenant = self._tenant(request)
        handles: tuple[str, ...] = ()
        with ExitStack() as stack:
            try:
                require_client(tenant)
                if self._draining:
                    raise Refusal(503, "shutting_down", "the server is shutting down", retry_after=60)
                body = check_request(await self._body(request), self._settings.max_model_len)
                stack.enter_context(self._gate.admit(tenant, sequences_of(body)))
                name, entries = self._resolve(body.get("model"), tenant)
                handles = name.handles
                items = self._ask(kind, body, name, entries, tenant)
                first = await first_of(items)
            except LPCError as error:
                self._metrics.ended(handles, tenant.name, refusal_of(error).status)
                raise
            if isinstance(first, dict):
                self._metrics.ended(handles, tenant.name, first["status"])
                return JSONResponse(first["body"], first["status"], first["headers"])
            self._metrics.first_event(handles, tenant.name, time.perf_counter() - started)
            self._metrics.ended(handles, tenant.name, 200)
            return EventStream(events(first, items), stack.pop_all().close)

    async def _body(self, request: Request) -> Any:
        """The JSON of a body; a large one is parsed beside the loop."""
        raw = await read_body(request, self._settings.max_body_bytes)
        return await asyncio.to_thread(json_body, raw) if len(raw) > _LARGE_BODY else json_body(raw)

    def _ask(
        self, kind: str, body: dict[str, Any], name: ModelName, entries: list[Entry], tenant: Tenant
    ) -> AsyncIterator[Any]:
        prefixes = [(entry.digest, entry.num_tokens) for entry in entries]
        route = entries[0].digest if entries else ""
        answer = self._routed(route).answer.remote(
            kind, body, prefixes, str(name), tenant.name, tenant.share_prompt_cache
        )
        return aiter(answer)  # pyright: ignore[reportArgumentType]  # with stream=True it is always a generator

    def _routed(self, digest: str) -> DeploymentHandle:
        """A handle that prefers replicas which hold `digest`; kept, for each costs a router's connection."""
        if digest not in self._streams:
            self._streams[digest] = self._server.options(stream=True, multiplexed_model_id=digest)
        return self._streams[digest]

    def _tenant(self, request: Request) -> Tenant:
        return self._door.enter(request.headers, request.client and request.client.host)

    def _resolve(self, model: Any, tenant: Tenant) -> tuple[ModelName, list[Entry]]:
        """Raises: Refusal; 404 also for a handle that the tenant may not see, and for a bare model that it may not use."""
        name = parse_model(model, self._base)
        if not name.handles and not tenant.bare_model:
            raise Refusal(404, "model_not_found", f"model {str(name)!r} does not exist for this key", param="model")
        known = self._catalog.registry.entries()
        for handle in name.handles:
            if handle not in known or not tenant.may_use(handle):
                message = f"model {str(name)!r} does not exist: no prefix {handle!r} is loaded"
                raise Refusal(404, "model_not_found", message, param="model")
        return name, [known[handle] for handle in name.handles]

    @app.get("/v1/models")
    async def models(self, request: Request) -> Response:
        tenant = self._tenant(request)
        after, limit = _page_of(request)
        visible = [
            handle for handle in self._catalog.after(after.removeprefix(f"{self._base}:")) if tenant.may_use(handle)
        ]
        bare = [self._card(None)] if tenant.bare_model and not after else []
        cards = [*bare, *map(self._card, visible[:limit])]
        return JSONResponse({"object": "list", "data": cards, "has_more": len(visible) > limit})

    @app.get("/v1/models/{model:path}")
    async def model(self, request: Request, model: str) -> Response:
        name, _ = self._resolve(model, self._tenant(request))
        if len(name.handles) > 1:
            raise Refusal(404, "model_not_found", f"model {model!r} is a composition; ask for its parts", param="model")
        return JSONResponse(self._card(name.handles[0] if name.handles else None))

    def _card(self, handle: str | None) -> dict[str, Any]:
        card = {"object": "model", "created": 0, "owned_by": "lpc_ray", "max_model_len": self._settings.max_model_len}
        if handle is None:
            return {"id": self._base, "parent": None, **card}
        entry = self._catalog.registry[handle]
        details = {"kind": entry.kind, "num_tokens": entry.num_tokens, "digest": entry.digest}
        return {"id": str(ModelName(self._base, (handle,))), "parent": self._base, **card, **details}

    @app.get("/v1/prefixes")
    async def prefixes(self, request: Request) -> Response:
        require_admin(self._tenant(request))
        after, limit = _page_of(request)
        found = self._catalog.after(after)
        return JSONResponse({"data": await self._catalog.rows(found[:limit]), "has_more": len(found) > limit})

    @app.put("/v1/prefixes/{handle}")
    async def load(self, request: Request, handle: str) -> Response:
        require_admin(self._tenant(request))
        body = await self._body(request)
        known = {"digest", "align", "pinned"}
        if not isinstance(body, dict) or set(body) - known or not isinstance(body.get("digest"), str):
            raise Refusal(400, "invalid_request", f"wanted a JSON object with digest and no others of {sorted(known)}")
        align, pinned = body.get("align", "exact"), body.get("pinned", False)
        if not isinstance(pinned, bool):
            raise Refusal(400, "invalid_request", f"pinned: got {pinned!r}, wanted true or false", param="pinned")
        previous = await self._catalog.load(check_new_handle(handle), body["digest"], align, pinned)
        return JSONResponse({**self._card(handle), "previous_digest": previous and previous.digest})

    @app.delete("/v1/prefixes/{handle}")
    async def unload(self, request: Request, handle: str) -> Response:
        require_admin(self._tenant(request))
        entry = await self._catalog.unload(check_handle(handle))
        return JSONResponse({"id": handle, "digest": entry.digest, "deleted": True})

    @app.post("/v1/prefixes/{handle}/pin")
    async def pin(self, request: Request, handle: str) -> Response:
        require_admin(self._tenant(request))
        await self._catalog.pin(check_handle(handle))
        return JSONResponse({"id": handle, "pinned": True})

    @app.delete("/v1/prefixes/{handle}/pin")
    async def unpin(self, request: Request, handle: str) -> Response:
        require_admin(self._tenant(request))
        await self._catalog.unpin(check_handle(handle))
        return JSONResponse({"id": handle, "pinned": False})

    @app.get("/metrics")
    async def metrics(self, request: Request) -> Response:
        require_metrics(self._tenant(request))
        page = merged(self._metrics.registry, dict(await self._catalog.everywhere("samples")))
        return PlainTextResponse(page, media_type="text/plain; version=0.0.4")

    @app.get("/live")
    async def live(self) -> Response:
        """Whether this process answers; what only a restart would mend is not asked."""
        return JSONResponse({"status": "ok"})

    @app.get("/health")
    async def health(self) -> Response:
        """Whether a request would be answered now: not while draining, nor without an engine that is well."""
        if self._draining:
            return JSONResponse({"status": "draining"}, 503)
        is_ready = await self._is_ready()
        return JSONResponse({"status": "ok" if is_ready else "no engine answers"}, 200 if is_ready else 503)

    async def _is_ready(self) -> bool:
        asked_at, is_ready = self._ready
        if time.monotonic() - asked_at > _READY_SECONDS:
            try:
                async with asyncio.timeout(_READY_SECONDS):
                    is_ready = await self._server.is_well.remote()
            except Exception as error:  # Ray's errors of dead replicas have no common base
                logger.warning("no engine answers: %s: %s", type(error).__name__, error)
                is_ready = False
            self._ready = (time.monotonic(), is_ready)
        return is_ready

    @app.get("/")
    async def page(self) -> Response:
        return HTMLResponse(_PAGE.read_text(encoding="utf-8"))

    async def drain(self) -> None:
        """Refuse new requests with 503 from now on; return when the running ones have ended, or after DRAIN_SECONDS."""
        self._draining = True
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._gate.open_requests() and time.monotonic() < deadline:
            await asyncio.sleep(0.05)


def _door(settings: ServerSettings, admin_key_digest: bytes | None) -> Door:
    if settings.keys is not None:
        return KeyedDoor(KeyFile(settings.keys))
    assert admin_key_digest is not None, "without a key file the server has an admin key"
    return LocalDoor(admin_key_digest, settings.origins)


def _page_of(request: Request) -> tuple[str, int]:
    """The query's `after` (an id of the page before, or none) and `limit`. Raises: Refusal 400."""
    limit = request.query_params.get("limit", str(MOST_ROWS))
    if not limit.isdecimal() or not 1 <= int(limit) <= MOST_ROWS:
        raise Refusal(400, "invalid_request", f"limit: got {limit[:20]!r}, wanted 1 to {MOST_ROWS}", param="limit")
    return request.query_params.get("after", ""), int(limit)
