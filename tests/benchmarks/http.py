#!/usr/bin/env python
"""What HTTP costs: streams through proxy, ingress and replica beside the same engine asked in this process, in one run.

`python -m tests.benchmarks.http [--streams N ...] [--json FILE]`; nothing else may run on the machine. Both engines stand on
the same cores and are asked in turn; the client runs there as well. Every figure is the median of its rounds, the first of
which warms up and is dropped.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from lpc_ray.adapters.vllm.engine import EngineSettings, VLLMEngine
from lpc_ray.records import PrefixRef
from lpc_ray.serving.rewriting import Rewriting
from lpc_ray.storage import Store
from tests.serving import FACTS, NAME, PREFIX_TOKENS, Oracle, application, publish_texts

HANDLE, QUESTION_TOKENS, NEW_TOKENS = "fact-red", 24, 96
REQUESTS, BEGIN_SECONDS = 2, 2.0
Measured = tuple[float, float]  # tokens per second over all streams, median seconds to the first token


class InProcess:
    def __init__(self, engine: VLLMEngine, prefix: PrefixRef):
        self._engine, self._rewriting = engine, Rewriting((prefix,))

    async def stream(self, ids: list[int]) -> float:
        """Seconds to the first token."""
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        prompt = TokensPrompt(prompt_token_ids=self._rewriting.token_ids(ids))
        prompt["cache_salt"] = self._rewriting.cache_salt or ""
        extra = {"kv_transfer_params": self._rewriting.transfer_params}
        delta = RequestOutputKind.DELTA
        sampling = SamplingParams(
            temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, output_kind=delta, extra_args=extra
        )
        started, first = time.perf_counter(), None
        async for _ in self._engine._engine.generate(prompt, sampling, request_id=uuid.uuid4().hex):
            first = first or time.perf_counter() - started
        assert first is not None
        return first


class OverHTTP:
    """A client of plain sockets, so that it takes little of the cores that the server runs on."""

    def __init__(self, url: str):
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port

    async def stream(self, ids: list[int]) -> float:
        body = {"model": f"{NAME}:{HANDLE}", "prompt": ids, "max_tokens": NEW_TOKENS, "temperature": 0}
        content = json.dumps(body | {"stream": True, "ignore_eos": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Length: {len(content)}\r\n"
        started = time.perf_counter()
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + content)
        seen, first = b"", None
        while chunk := await reader.read(1 << 16):
            seen += chunk
            if first is None and b"data: " in seen:
                first = time.perf_counter() - started
        writer.close()
        assert first is not None and b"[DONE]" in seen, seen[-500:]
        return first


async def measure(asked: InProcess | OverHTTP, streams: int, number: int) -> Measured:
    """`streams` clients, each with one request after another, which begin one after another."""

    async def client(one: int) -> list[float]:
        await asyncio.sleep(one * BEGIN_SECONDS / streams)
        firsts = []
        for turn in range(REQUESTS):
            start = number * 9973 + one * 331 + turn * 31
            firsts.append(await asked.stream([10 + (start + at) % 40_000 for at in range(QUESTION_TOKENS)]))
        return firsts

    started = time.perf_counter()
    firsts = await asyncio.gather(*map(client, range(streams)))
    rate = streams * REQUESTS * NEW_TOKENS / (time.perf_counter() - started)
    return rate, statistics.median(first for each in firsts for first in each)


async def compare(url: str, engine: VLLMEngine, prefix: PrefixRef, streams: int, rounds: int) -> dict[str, float]:
    ways = {"in_process": InProcess(engine, prefix), "http": OverHTTP(url)}
    found: dict[str, list[Measured]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            measured = await measure(way, streams, number * 7 + len(name))
            if number:
                found[name].append(measured)
    rates = {name: statistics.median(rate for rate, _ in each) for name, each in found.items()}
    firsts = {name: statistics.median(first for _, first in each) for name, each in found.items()}
    return {
        "throughput": rates["http"] / rates["in_process"],
        "added_ttft_ms": 1000 * (firsts["http"] - firsts["in_process"]),
        "tokens_per_second": rates["http"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.http", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64], help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        oracle, store = Oracle(), Store(f"{folder}/artifacts")
        digest = publish_texts(oracle, store, {HANDLE: FACTS[HANDLE]})[HANDLE]
        sizes = {"max_model_len": 512, "max_num_seqs": 64, "kv_cache_gib": 1}
        settings = EngineSettings(oracle.folder, dtype=options.dtype, **sizes, extra={"enforce_eager": True})
        named = {"artifacts": store.url, "prefixes": {HANDLE: digest}, "dtype": options.dtype, **sizes}
        with application(**named) as (url, _):
            found = asyncio.run(_run(url, settings, PrefixRef(digest, store.path(digest), PREFIX_TOKENS), options))
    table = Table("streams", "throughput over HTTP / in process", "added TTFT, ms", "tokens/s over HTTP")
    for streams, one in found.items():
        table.add_row(streams, *(f"{one[name]:.2f}" for name in ("throughput", "added_ttft_ms", "tokens_per_second")))
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


async def _run(
    url: str, settings: EngineSettings, prefix: PrefixRef, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    engine = VLLMEngine(settings)
    await engine.start()
    try:
        return {str(n): await compare(url, engine, prefix, n, options.rounds) for n in options.streams}
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
