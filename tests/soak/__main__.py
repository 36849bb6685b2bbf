"""`python -m tests.soak`: half an hour and ten thousand requests against `python -m serve.app`, and what became of them.

Exits with 1 for a wrong fact, a lost request, an answer that no fault explains, or what grows.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import yaml
from rich.console import Console
from rich.table import Table

from lpc_ray.storage import Store
from tests.serving import FACTS, PREFIX_TOKENS, QUESTION, Oracle, free_port, publish_texts
from tests.soak.clients import NEW_TOKENS, Clients, Tenant
from tests.soak.faults import Admin, Killer
from tests.soak.handles import Handles
from tests.soak.ledger import Ledger
from tests.soak.watch import Watch

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = (QUESTION, "What colour does the gate have?", "Name the colour of the gate.", "Describe the gate.")
REPLICAS = 2
RESIDENT = 6
START_SECONDS = 300
MOVING, COMING = "moving", "coming"
ADMIN_KEY = "key-of-the-admin"
TENANTS = (
    Tenant("warm", "key-of-warm", ("fact-red", "fact-blue", "fact-green")),
    Tenant("cold", "key-of-cold", ("fact-yellow", "fact-black", "fact-white", "fact-orange", "fact-purple")),
    Tenant("moved", "key-of-moved", (MOVING, COMING)),
)
FLOOD = Tenant("flood", "key-of-flood", ("fact-red", "fact-yellow"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="at least (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=10_000, help="at least (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=4, help="that ask, of each tenant (default: %(default)s)")
    parser.add_argument("--kill-every", type=float, default=150, help="seconds (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak", dir="/tmp") as scratch:
        return _soak(options, Path(scratch))


def _soak(options: argparse.Namespace, scratch: Path) -> int:
    oracle, store = Oracle(), Store(str(scratch / "artifacts"))
    facts = publish_texts(oracle, store, FACTS)
    wanted = {}
    for fact, digest in facts.items():
        tensors = oracle.load(store, digest)
        wanted |= {(fact, prompt): oracle.chat([tensors], prompt, NEW_TOKENS)[0] for prompt in PROMPTS}
    handles = Handles(wanted, PROMPTS)
    given = {**facts, MOVING: facts["fact-red"], COMING: facts["fact-blue"]}
    for handle in facts:
        handles.load(handle, handle)
    handles.load(MOVING, "fact-red")
    handles.load(COMING, "fact-blue")
    url, process = _start(scratch, store, given)
    try:
        ledger, watch = asyncio.run(_run(options, url, process.pid, handles, facts))
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(120)
    return _report(options, ledger, watch, code, time.monotonic())


def _start(scratch: Path, store: Store, prefixes: dict[str, str]) -> tuple[str, subprocess.Popen]:
    keys, port, log = scratch / "keys.yaml", free_port(), scratch / "log"
    tenants: dict[str, dict] = {one.name: {"keys": [one.key], "handles": list(one.handles)} for one in TENANTS}
    tenants[FLOOD.name] = {"keys": [FLOOD.key], "handles": list(FLOOD.handles), "max_concurrent": 4}
    keys.write_text(yaml.safe_dump({"admin_keys": [ADMIN_KEY], "tenants": tenants}))
    bytes_of_one = PREFIX_TOKENS * 30 * 3 * 64 * 2 * 4
    settings = {
        "artifacts": store.url,
        "keys": str(keys),
        "prefixes": json.dumps(prefixes),
        "replicas": REPLICAS,
        "replica_cpus": 0.5,
        "threads": 1,
        "max_model_len": 512,
        "host_tier": str(scratch / "tier"),
        "host_tier_bytes": RESIDENT * bytes_of_one + 1000,
        "engine": json.dumps({"enforce_eager": True, "num_gpu_blocks_override": 128, "block_size": 32}),
    }
    command = [
        sys.executable,
        "-m",
        "serve.app",
        "--port",
        str(port),
        *(f"{name}={value}" for name, value in settings.items()),
    ]
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=sink, stderr=sink, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
    deadline = time.monotonic() + START_SECONDS
    while "serving " not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            raise SystemExit(f"the server did not start:\n{log.read_text()}")
        time.sleep(0.5)
    return f"http://127.0.0.1:{port}", process


async def _run(
    options: argparse.Namespace, url: str, server: int, handles: Handles, facts: dict[str, str]
) -> tuple[Ledger, Watch]:
    ledger, watch = Ledger(), Watch(url, ADMIN_KEY, server)
    limits = httpx.Limits(max_connections=400, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        clients = Clients(http, ledger, handles, time.monotonic() + options.minutes * 60, options.requests)
        admin, killer = Admin(http, ADMIN_KEY, ledger, handles, facts), Killer(url, ADMIN_KEY, server, REPLICAS, ledger)
        async with asyncio.TaskGroup() as group:
            for seed, tenant in enumerate(TENANTS * options.clients):
                group.create_task(clients.ask_and_check(tenant, seed))
            for seed, tenant in enumerate(TENANTS[:2]):
                group.create_task(clients.leave(tenant, seed))
            group.create_task(clients.flood(FLOOD, 0))
            group.create_task(clients.intrude(TENANTS[0], TENANTS[1].handles, 0))
            group.create_task(admin.manage(clients, MOVING, COMING, "fact-green", 0))
            group.create_task(killer.kill(clients, options.kill_every, 0))
            group.create_task(watch.watch(clients))
            group.create_task(_tell(clients))
    return ledger, watch


async def _tell(clients: Clients) -> None:
    began = time.monotonic()
    while not clients.is_over:
        await asyncio.sleep(60)
        ledger = clients.ledger
        print(
            f"[{(time.monotonic() - began) / 60:.0f} min] {ledger.requests} requests, {len(ledger.wrong)} wrong, "
            f"{len(ledger.lost)} lost, {len(ledger.unexplained)} unexplained, {len(ledger.faults)} kills",
            flush=True,
        )


def _report(options: argparse.Namespace, ledger: Ledger, watch: Watch, code: int, now: float) -> int:
    console = Console()
    table = Table("client", "outcome", "requests")
    for (kind, outcome), count in sorted(ledger.answers.items()):
        table.add_row(kind, outcome, str(count))
    console.print(table)
    growth = watch.growth()
    table = Table("watched", "middle third", "last third", "flat")
    for name, middle, last, is_flat in growth:
        table.add_row(name, f"{middle:.1f}", f"{last:.1f}", "yes" if is_flat else "NO")
    console.print(table)
    failures = [f"wrong: {one}" for one in ledger.wrong] + [f"lost: {one}" for one in ledger.lost]
    failures += [f"unexplained: {one}" for one in ledger.unexplained]
    failures += [
        f"not flat: {name}: {middle:.1f} → {last:.1f}" for name, middle, last, is_flat in growth if not is_flat
    ]
    failures += [f"the server ended with code {code}"] if code else []
    kills = ", ".join(f"{what.split(':')[0]} ({min(until, now) - began:.0f} s)" for what, began, until in ledger.faults)
    console.print(f"{ledger.requests} requests; killed: {kills or 'nothing'}; {len(failures)} failures")
    for failure in failures[:50]:
        console.print(failure, markup=False)
    if options.json:
        counts = {f"{kind} {outcome}": count for (kind, outcome), count in ledger.answers.items()}
        figures = {"requests": ledger.requests, "answers": counts, "kills": len(ledger.faults), "failures": failures}
        options.json.write_text(json.dumps(figures | {"series": watch.series}, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
