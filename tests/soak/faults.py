"""What an admin and bad luck do: handles moved, removed, loaded and pinned; engines and replicas killed."""

import asyncio
import random
import time

import httpx
import psutil

from tests.serving import replica_ids
from tests.soak.clients import Clients
from tests.soak.handles import Handles
from tests.soak.ledger import Ledger

RECOVERY_SECONDS = 240


class Admin:
    """facts: fact → digest. moving, coming: the handles that it moves between facts, and removes and loads again."""

    def __init__(self, http: httpx.AsyncClient, key: str, ledger: Ledger, handles: Handles, facts: dict[str, str]):
        self._http, self._headers = http, {"Authorization": f"Bearer {key}"}
        self._ledger, self._handles, self._facts = ledger, handles, facts

    async def manage(self, clients: Clients, moving: str, coming: str, pinned: str, seed: int) -> None:
        choice = random.Random(seed)
        while not clients.is_over:
            await self._put(moving, choice.choice(list(self._facts)))
            if self._handles.now(coming) is None:
                await self._put(coming, choice.choice(list(self._facts)))
            else:
                await self._changed(coming, None, "DELETE", f"/v1/prefixes/{coming}")
            await self._done("POST", f"/v1/prefixes/{pinned}/pin")
            await asyncio.sleep(choice.uniform(0.5, 2))
            await self._done("DELETE", f"/v1/prefixes/{pinned}/pin")
            await asyncio.sleep(choice.uniform(0.5, 2))

    async def _put(self, handle: str, fact: str) -> None:
        await self._changed(handle, fact, "PUT", f"/v1/prefixes/{handle}", {"digest": self._facts[fact]})

    async def _changed(self, handle: str, fact: str | None, method: str, path: str, body: dict | None = None) -> None:
        """Tries until it is done, so that the handle's state is known."""
        self._handles.begin(handle, fact)
        while not await self._done(method, path, body):
            await asyncio.sleep(1)
        self._handles.end(handle)

    async def _done(self, method: str, path: str, body: dict | None = None) -> bool:
        began = time.monotonic()
        try:
            answer = await self._http.request(method, path, json=body, headers=self._headers)
        except httpx.HTTPError as error:
            self._ledger.refused("admin", 599, f"error: {type(error).__name__}", began, set())
            return False
        if answer.is_success or method == "DELETE" and answer.status_code == 404:
            self._ledger.answers["admin", "done"] += 1
            return True
        self._ledger.refused("admin", answer.status_code, answer.text, began, set())
        return False


class Killer:
    """Ends an engine, then a replica, in turn. url: of the server; server: its process; replicas: how many it should have."""

    def __init__(self, url: str, key: str, server: int, replicas: int, ledger: Ledger):
        self._url, self._headers, self._ledger = url, {"Authorization": f"Bearer {key}"}, ledger
        self._server, self._replicas = psutil.Process(server), replicas

    async def kill(self, clients: Clients, every: float, seed: int) -> None:
        choice, names = random.Random(seed), ["EngineCore", "ServeReplica:lpc_ray:prefixes"]
        while True:
            next_at = time.monotonic() + every
            while time.monotonic() < next_at:
                await asyncio.sleep(1)
                if clients.is_over:
                    return
            name = names[0]
            names.reverse()
            victim = choice.choice(processes(self._server, name))
            self._ledger.begin_fault(name)
            victim.kill()
            await asyncio.to_thread(self._wait_until_well, victim)
            self._ledger.end_fault()

    def _wait_until_well(self, victim: psutil.Process) -> None:
        """Until the victim is gone and all replicas answer for themselves."""
        deadline = time.monotonic() + RECOVERY_SECONDS
        while time.monotonic() < deadline:
            time.sleep(2)
            try:
                if not victim.is_running() and len(replica_ids(self._url, self._headers)) >= self._replicas:
                    engines = processes(self._server, "EngineCore")
                    if len(engines) >= self._replicas and httpx.get(f"{self._url}/health", timeout=30).is_success:
                        return
            except httpx.HTTPError:
                continue
        self._ledger.unexplained.append(f"no {self._replicas} replicas {RECOVERY_SECONDS} s after a kill")


def processes(server: psutil.Process, name: str) -> list[psutil.Process]:
    """Those below the server whose title holds `name`."""
    found = []
    for process in server.children(recursive=True):
        try:
            if name in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
