"""Memory, open files, shared memory and metric labels over the soak; flat is what does not grow from its middle to its end."""

import asyncio
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from tests.soak.clients import Clients
from tests.soak.faults import processes

ROLES = {
    "ingress": "ServeReplica:lpc_ray:Ingress",
    "proxy": "ProxyActor",
    "controller": "ServeController",
    "replica": "ServeReplica:lpc_ray:prefixes",
    "engine": "EngineCore",
}
EVERY_SECONDS = 15
GROWTH = 1.05
SPARE_MIB = 16


@dataclass
class Watch:
    """series: what is watched (of a process: role, pid and measure) → its samples, one per `EVERY_SECONDS`."""

    url: str
    key: str
    server: int
    series: dict[str, list[float]] = field(default_factory=dict)

    async def watch(self, clients: Clients) -> None:
        while not clients.is_over:
            await asyncio.to_thread(self._sample)
            await asyncio.sleep(EVERY_SECONDS)

    def _sample(self) -> None:
        server = psutil.Process(self.server)
        for role, title in ROLES.items():
            for process in processes(server, title):
                try:
                    self._add(f"{role} {process.pid} MiB", process.memory_full_info().uss / 2**20)
                    self._add(f"{role} {process.pid} files", process.num_fds())
                except psutil.NoSuchProcess:
                    continue
        self._add("driver MiB", server.memory_full_info().uss / 2**20)
        self._add("/dev/shm files", sum(1 for _ in Path("/dev/shm").rglob("*")))
        page = httpx.get(f"{self.url}/metrics", headers={"Authorization": f"Bearer {self.key}"}, timeout=60)
        if page.is_success:
            ours = [line for line in page.text.splitlines() if line.startswith("lpc_") and "_created" not in line]
            self._add("metric series of a replica", sum("replica=" in line for line in ours) / max(1, _replicas(ours)))
            self._add("metric series of the ingress", sum("replica=" not in line for line in ours))

    def _add(self, name: str, value: float) -> None:
        self.series.setdefault(name, []).append(value)

    def growth(self) -> list[tuple[str, float, float, bool]]:
        """Of each series over at least half the soak: name, mean of its middle third, of its last, whether that is flat."""
        longest, found = max(map(len, self.series.values())), []
        for name, samples in sorted(self.series.items()):
            third = len(samples) // 3
            if 2 * len(samples) >= longest and third:
                middle, last = statistics.mean(samples[third : 2 * third]), statistics.mean(samples[-third:])
                spare = SPARE_MIB if name.endswith("MiB") else 4
                found.append((name, middle, last, last <= middle * GROWTH + spare))
        return found


def _replicas(lines: list[str]) -> int:
    return len({line.split('replica="')[1].split('"')[0] for line in lines if 'replica="' in line})
