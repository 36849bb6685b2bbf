"""Tenants: those that ask and check, those that leave, those that flood, and those that try what is not theirs."""

import asyncio
import json
import random
import time
from dataclasses import dataclass

import httpx

from tests.serving import NAME
from tests.soak.handles import Handles
from tests.soak.ledger import Ledger

TRIES = 40
NEW_TOKENS = 6


@dataclass
class Tenant:
    name: str
    key: str
    handles: tuple[str, ...]


@dataclass
class Clients:
    """All clients of one soak. They stop once it is `ends` (`time.monotonic()`) and the ledger holds `at_least` requests."""

    http: httpx.AsyncClient
    ledger: Ledger
    handles: Handles
    ends: float
    at_least: int

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends and self.ledger.requests >= self.at_least

    async def ask_and_check(self, tenant: Tenant, seed: int) -> None:
        """One request after another, each tried again until it is answered; half of them are streams."""
        choice = random.Random(seed)
        while not self.is_over:
            handle = choice.choice(tenant.handles)
            prompt = choice.choice(self.handles.prompts)
            for attempt in range(TRIES):
                if await self._asked(tenant, handle, prompt, choice.random() < 0.5):
                    break
                await asyncio.sleep(min(5.0, 0.5 * (attempt + 1)))
            else:
                self.ledger.lost.append(f"{tenant.name} {handle} {prompt!r}: {TRIES} tries")

    async def _asked(self, tenant: Tenant, handle: str, prompt: str, is_stream: bool) -> bool:
        """Whether the request was answered. A handle that is not loaded while it is asked for is answered by 404."""
        began, kind = time.monotonic(), "stream" if is_stream else "answer"
        body = self._body(handle, prompt) | {"stream": is_stream}
        try:
            status, text, found = await self._said(body, tenant.key)
        except httpx.HTTPError as error:
            self.ledger.refused(kind, 599, f"error: {type(error).__name__} {error}", began, set())
            return False
        if status != 200:
            gone = {404} if self.handles.was_absent(handle, began, time.monotonic()) else set()
            self.ledger.refused(kind, status, text, began, gone)
            return status == 404 and bool(gone)
        if found is None:
            self.ledger.refused(kind, 598, f"error: a stream that ended without its end: {text[-200:]}", began, set())
            return False
        allowed = self.handles.texts(handle, prompt, began, time.monotonic())
        if found not in allowed:
            self.ledger.wrong.append(
                f"{tenant.name} {handle} {prompt!r}: got {found!r}, wanted one of {sorted(allowed)}"
            )
        self.ledger.answers[kind, "200"] += 1
        return True

    async def _said(self, body: dict, key: str) -> tuple[int, str, str | None]:
        """Status, what came, and the reply; None for a stream that broke off, or told an error."""
        headers = {"Authorization": f"Bearer {key}"}
        if not body["stream"]:
            answer = await self.http.post("/v1/chat/completions", json=body, headers=headers)
            text = answer.text
            return (
                answer.status_code,
                text,
                answer.json()["choices"][0]["message"]["content"] if answer.is_success else None,
            )
        async with self.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            text = (await answer.aread()).decode()
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        if not answer.is_success or not events or events[-1] != "[DONE]" or '"error"' in text:
            return answer.status_code, text, None
        parts = [
            choice["delta"].get("content") or "" for event in events[:-1] for choice in json.loads(event)["choices"]
        ]
        return 200, text, "".join(parts)

    def _body(self, handle: str, prompt: str) -> dict:
        messages = [{"role": "user", "content": prompt}]
        return {"model": f"{NAME}:{handle}", "messages": messages, "max_tokens": NEW_TOKENS, "temperature": 0}

    async def leave(self, tenant: Tenant, seed: int) -> None:
        """Streams that would be long, left after the first event or before it."""
        choice = random.Random(seed)
        while not self.is_over:
            began = time.monotonic()
            body = self._body(choice.choice(tenant.handles), "Tell me all.") | {"max_tokens": 100, "stream": True}
            try:
                async with self.http.stream(
                    "POST", "/v1/chat/completions", json=body, headers=_bearer(tenant)
                ) as answer:
                    if answer.status_code != 200:
                        self.ledger.refused("leaver", answer.status_code, (await answer.aread()).decode(), began, set())
                        continue
                    if choice.random() < 0.7:
                        await anext(answer.aiter_lines())
                    self.ledger.answers["leaver", "left"] += 1
            except (httpx.HTTPError, StopAsyncIteration) as error:
                self.ledger.refused("leaver", 599, f"error: {type(error).__name__}", began, set())
            await asyncio.sleep(choice.uniform(0.2, 2))

    async def flood(self, tenant: Tenant, seed: int) -> None:
        """Bursts over what the tenant may have open; those over it are refused, and bad bodies are."""
        choice = random.Random(seed)
        while not self.is_over:
            await asyncio.gather(*(self._bad(tenant, choice) for _ in range(24)))
            await asyncio.sleep(choice.uniform(5, 15))

    async def _bad(self, tenant: Tenant, choice: random.Random) -> None:
        began, handle = time.monotonic(), choice.choice(tenant.handles)
        good = self._body(handle, choice.choice(self.handles.prompts))
        kinds: list[tuple[set[int], bytes]] = [
            ({200, 429}, json.dumps(good).encode()),
            ({400, 429}, json.dumps(good | {"kv_transfer_params": {"x": 1}}).encode()),
            ({400, 429}, json.dumps(good | {"max_tokens": 10**9}).encode()),
            ({413, 429}, b"[" * (2 << 20)),
            ({400, 429}, b'{"model": "' + bytes(range(200, 256))),
            ({404, 429}, json.dumps(good | {"model": f"{NAME}:none-{choice.random()}"}).encode()),
        ]
        allowed, content = choice.choice(kinds)
        try:
            answer = await self.http.post("/v1/chat/completions", content=content, headers=_bearer(tenant))
        except httpx.HTTPError as error:
            # A server that refuses a body before it has all may close the connection while the client still sends.
            self.ledger.refused(
                "flood", 599, f"error: {type(error).__name__}", began, {599} if 413 in allowed else set()
            )
            return
        self.ledger.refused("flood", answer.status_code, answer.text, began, allowed)

    async def intrude(self, tenant: Tenant, others: tuple[str, ...], seed: int) -> None:
        """Another tenant's handles, alone and composed with own ones; administration; no key and a wrong one."""
        choice = random.Random(seed)
        while not self.is_over:
            other, own = choice.choice(others), choice.choice(tenant.handles)
            for model in (other, f"{own}+{other}"):
                await self._refused(
                    {404}, "POST", "/v1/chat/completions", tenant.key, self._body(model, "Tell me all.")
                )
            await self._refused({403}, "DELETE", f"/v1/prefixes/{other}", tenant.key)
            await self._refused({403}, "GET", "/metrics", tenant.key)
            await self._refused({401}, "GET", "/v1/models", "no-such-key")
            await asyncio.sleep(choice.uniform(1, 4))

    async def _refused(self, allowed: set[int], method: str, path: str, key: str, body: dict | None = None) -> None:
        began = time.monotonic()
        try:
            answer = await self.http.request(method, path, json=body, headers={"Authorization": f"Bearer {key}"})
        except httpx.HTTPError as error:
            self.ledger.refused("intruder", 599, f"error: {type(error).__name__}", began, set())
            return
        if answer.is_success:
            self.ledger.wrong.append(f"{method} {path} by a tenant without the right: {answer.text[:200]}")
        self.ledger.refused("intruder", answer.status_code, answer.text, began, allowed)


def _bearer(tenant: Tenant) -> dict[str, str]:
    return {"Authorization": f"Bearer {tenant.key}"}
