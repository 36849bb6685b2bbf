"""The HTTP side: OpenAI's API, management, metrics and the page. Loads neither vLLM nor torch."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException

from lpc_ray.adapters.server.responses import EventStream, events, first_of, read_body, unavailable
from lpc_ray.errors import LPCError
from lpc_ray.serving.handles import ModelName, check_handle, check_new_handle, parse_model
from lpc_ray.serving.metrics import RequestMetrics, merged
from lpc_ray.serving.refusal import Refusal, refusal_of
from lpc_ray.serving.registry import Entry, Registry
from lpc_ray.serving.rewriting import check_request, json_body, sequences_of
from lpc_ray.serving.settings import ServerSettings
from lpc_ray.serving.tenants import LOCAL, Concurrency, Keys, Tenant, require_admin
from lpc_ray.storage import Store

logger = logging.getLogger("ray.serve")
app = FastAPI(title="lpc_ray", docs_url=None, redoc_url=None, openapi_url=None)
_PAGE = Path(__file__).parent / "page.html"


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

    async def __init__(self, server: DeploymentHandle, settings: ServerSettings):
        self._settings, self._base, self._server = settings, settings.served_name, server
        self._keys = Keys(settings.keys) if settings.keys else None
        self._registry = Registry(Store(settings.registry_url))
        self._gate, self._metrics, self._draining = Concurrency(), RequestMetrics(), False
        self._streams: dict[str, DeploymentHandle] = {}
        if self._keys is None:
            logger.warning("no key file: lpc_ray serves clients on this machine only (127.0.0.1)")
        for handle, digest in settings.prefixes.items():
            if check_new_handle(handle) not in self._registry.entries():
                await self._load(handle, digest, "exact", pinned=False)

    @app.post("/v1/chat/completions")
    async def chat(self, request: Request) -> Response:
        return await self._complete(request, "chat")

    @app.post("/v1/completions")
    async def completions(self, request: Request) -> Response:
        return await self._complete(request, "completions")

    async def _complete(self, request: Request, kind: str) -> Response:
        started = time.perf_counter()
        tenant = self._tenant(request)
        label = ""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._gate.admit(tenant))
                if self._draining:
                    raise Refusal(503, "shutting_down", "the server is shutting down", retry_after=60)
                body = check_request(json_body(await read_body(request)), self._settings.placeholder_id)
                stack.enter_context(self._gate.admit(tenant, sequences_of(body) - 1))
                name, entries = self._resolve(body.get("model"), tenant)
                label = "+".join(name.handles)
                items = self._ask(kind, body, name, entries, tenant)
                first = await first_of(items)
            except LPCError as error:
                self._metrics.requests.labels(label, tenant.name, str(refusal_of(error).status)).inc()
                raise
            if isinstance(first, dict):
                self._metrics.requests.labels(label, tenant.name, str(first["status"])).inc()
                self._metrics.count_usage(first["body"].get("usage") or {}, label, tenant.name)
                return JSONResponse(first["body"], first["status"], first["headers"])
            self._metrics.ttft.labels(label, tenant.name).observe(time.perf_counter() - started)
            self._metrics.requests.labels(label, tenant.name, "200").inc()
            count = partial(self._metrics.count_usage, handle=label, tenant=tenant.name)
            return EventStream(events(first, items, count), stack.pop_all().close)

    def _ask(
        self, kind: str, body: dict[str, Any], name: ModelName, entries: list[Entry], tenant: Tenant
    ) -> AsyncIterator[Any]:
        prefixes = [(entry.digest, entry.num_tokens) for entry in entries]
        salt = tenant.name if tenant.isolate else None
        route = entries[0].digest if entries else ""
        answer = self._routed(route).answer.remote(kind, body, prefixes, str(name), salt)
        return aiter(answer)  # pyright: ignore[reportArgumentType]  # with stream=True it is always a generator

    def _routed(self, digest: str) -> DeploymentHandle:
        """A handle that prefers replicas which hold `digest`; kept, for each costs a router's connection."""
        if digest not in self._streams:
            self._streams[digest] = self._server.options(stream=True, multiplexed_model_id=digest)
        return self._streams[digest]

    def _tenant(self, request: Request) -> Tenant:
        if self._keys is not None:
            return self._keys.authenticate(request.headers.get("authorization"))
        if request.client is None or not _is_loopback(request.client.host):
            raise Refusal(403, "local_only", "this server has no key file and serves clients on its own machine only")
        return LOCAL

    def _resolve(self, model: Any, tenant: Tenant) -> tuple[ModelName, list[Entry]]:
        """Raises: Refusal; 404 also for a handle that the tenant may not see."""
        name = parse_model(model, self._base)
        known = self._registry.entries()
        for handle in name.handles:
            if handle not in known or not tenant.may_use(handle):
                message = f"model {str(name)!r} does not exist: no prefix {handle!r} is loaded"
                raise Refusal(404, "model_not_found", message, param="model")
        return name, [known[handle] for handle in name.handles]

    @app.get("/v1/models")
    async def models(self, request: Request) -> Response:
        tenant = self._tenant(request)
        visible = [handle for handle in self._registry.entries() if tenant.may_use(handle)]
        return JSONResponse({"object": "list", "data": [self._card(None), *map(self._card, visible)]})

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
        entry = self._registry[handle]
        details = {"kind": entry.kind, "num_tokens": entry.num_tokens, "digest": entry.digest}
        return {"id": str(ModelName(self._base, (handle,))), "parent": self._base, **card, **details}

    @app.get("/v1/prefixes")
    async def prefixes(self, request: Request) -> Response:
        require_admin(self._tenant(request))
        held = dict(await self._everywhere("residents"))
        return JSONResponse({"data": [_row(handle, entry, held) for handle, entry in self._registry.entries().items()]})

    @app.put("/v1/prefixes/{handle}")
    async def load(self, request: Request, handle: str) -> Response:
        require_admin(self._tenant(request))
        body = json_body(await read_body(request))
        known = {"digest", "align", "pinned"}
        if not isinstance(body, dict) or set(body) - known or not isinstance(body.get("digest"), str):
            raise Refusal(400, "invalid_request", f"wanted a JSON object with digest and no others of {sorted(known)}")
        align, pinned = body.get("align", "exact"), body.get("pinned", False)
        if not isinstance(pinned, bool):
            raise Refusal(400, "invalid_request", f"pinned: got {pinned!r}, wanted true or false", param="pinned")
        previous = await self._load(check_new_handle(handle), body["digest"], align, pinned)
        return JSONResponse({**self._card(handle), "previous_digest": previous and previous.digest})

    async def _load(self, handle: str, digest: str, align: str, pinned: bool) -> Entry | None:
        """Load, prove, and only then let the handle point there. Raises: Refusal, and the handle is as it was."""
        server = self._server.options(multiplexed_model_id=digest)
        try:
            reply = await server.bring.remote(digest, align)
        except Exception as error:  # Ray's errors of dead replicas have no common base
            raise unavailable(error) from error
        if "refusal" in reply:
            raise reply["refusal"]
        previous = self._registry.move(handle, reply["entry"])
        if pinned or self._registry[handle].pinned:
            await self._pin(handle)
        if previous is not None and previous.pinned and previous.digest != digest:
            await self._unpin_unless_named(previous.digest)
        if align == "down":
            logger.warning(
                "prefix %s is served under %s with %d tokens (align: down)", digest, handle, reply["entry"].num_tokens
            )
        return previous

    @app.delete("/v1/prefixes/{handle}")
    async def unload(self, request: Request, handle: str) -> Response:
        require_admin(self._tenant(request))
        entry = self._registry.remove(check_handle(handle))
        if entry.pinned:
            await self._unpin_unless_named(entry.digest)
        if not self._registry.names(entry.digest):
            await self._everywhere("drop", entry.digest)
        return JSONResponse({"id": handle, "digest": entry.digest, "deleted": True})

    @app.post("/v1/prefixes/{handle}/pin")
    async def pin(self, request: Request, handle: str) -> Response:
        require_admin(self._tenant(request))
        await self._pin(check_handle(handle))
        return JSONResponse({"id": handle, "pinned": True})

    @app.delete("/v1/prefixes/{handle}/pin")
    async def unpin(self, request: Request, handle: str) -> Response:
        require_admin(self._tenant(request))
        entry = self._registry.pin(check_handle(handle), False)
        await self._unpin_unless_named(entry.digest)
        return JSONResponse({"id": handle, "pinned": False})

    async def _pin(self, handle: str) -> None:
        await self._everywhere("pin", self._registry[handle].digest, True)
        self._registry.pin(handle, True)

    async def _unpin_unless_named(self, digest: str) -> None:
        """Let replicas evict `digest`, unless another handle that points to it is pinned."""
        if not any(entry.pinned for entry in self._registry.entries().values() if entry.digest == digest):
            await self._everywhere("pin", digest, False)

    @app.get("/metrics")
    async def metrics(self, request: Request) -> Response:
        require_admin(self._tenant(request))
        page = merged(self._metrics.registry, dict(await self._everywhere("samples")))
        return PlainTextResponse(page, media_type="text/plain; version=0.0.4")

    @app.get("/health")
    async def health(self) -> Response:
        return JSONResponse({"status": "draining" if self._draining else "ok"}, 503 if self._draining else 200)

    @app.get("/")
    async def page(self) -> Response:
        return HTMLResponse(_PAGE.read_text(encoding="utf-8"))

    async def drain(self) -> None:
        """Refuse new requests with 503 from now on, and return when the running ones have ended."""
        self._draining = True
        while self._gate.open_requests():
            await asyncio.sleep(0.05)

    async def _everywhere(self, method: str, *arguments: Any) -> list[Any]:
        """What every replica answers. Raises: Refusal 503 when one does not answer."""
        try:
            return await self._server.broadcast(method, *arguments).results_async(timeout_s=120)
        except LPCError:
            raise
        except Exception as error:
            raise unavailable(error) from error


def _is_loopback(host: str) -> bool:
    """Whether a client's address, which a proxy's header may have set to anything, is this machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


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
