#!/usr/bin/env python
"""What a prefix costs to serve, as ratios of one run on one machine; nothing else may run on its cores.

`python -m tests.benchmarks.serving [--json FILE] [--only PART ...]` with the engine in this process. Every figure is the
median of its rounds; the first round of each warms up and is dropped.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

from lpc_ray.adapters.server.source import ArtifactSource
from lpc_ray.adapters.vllm.engine import EngineSettings, VLLMEngine
from lpc_ray.artifacts.store import TENSOR_FILE, publish
from lpc_ray.model.embedded import fetch_embedded_model
from lpc_ray.model.identity import model_identity
from lpc_ray.records import PrefixRef
from lpc_ray.serving.rewriting import Rewriting
from lpc_ray.serving.spare import SPARE_FILE, make_spare
from lpc_ray.storage import Store

NEW_TOKENS = 16
REQUESTS = 32
QUESTION_TOKENS = 24
TENANTS = 64
TENANT_TOKENS = 64
LORA_RANK = 13  # of q and v: the bytes of a 64-token prefix
DEMO = {"prefix": 128, "document": 804}


class Bench:
    """Prefixes of random vectors: what they say does not matter here, only what they cost."""

    def __init__(self, folder: Path, rounds: int, dtype: str, with_lora: bool):
        self.folder, self.rounds, self.model = folder, rounds, str(fetch_embedded_model())
        self.identity, self.store = model_identity(self.model), Store(str(folder / "artifacts"))
        self.numbers = np.random.default_rng(0)
        extra = {"enforce_eager": True}
        if with_lora:
            extra |= {"enable_lora": True, "max_lora_rank": 16, "max_loras": 8, "max_cpu_loras": TENANTS}
        self.engine = VLLMEngine(
            EngineSettings(
                self.model, dtype=dtype, max_model_len=4096, max_num_seqs=REQUESTS, kv_cache_gib=2, extra=extra
            )
        )

    def prefix(self, num_tokens: int) -> PrefixRef:
        who = self.identity
        shape = (2, who.num_layers, num_tokens, who.num_kv_heads, who.head_dim)
        keys, values = torch.from_numpy(self.numbers.normal(size=shape).astype(np.float32))
        digest = publish(self.store, keys, values, who, 1).digest
        return PrefixRef(digest, self.store.path(digest), num_tokens)

    def text(self, num_tokens: int) -> list[int]:
        return self.numbers.integers(10, 40_000, num_tokens).tolist()

    async def request(self, ids, prefix=None, salt=None, lora=None) -> float:
        """Seconds to the first token of one request, which runs to its end."""
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        rewriting = Rewriting((prefix,) if prefix else ())
        extra = {"kv_transfer_params": rewriting.transfer_params} if prefix else None
        prompt = TokensPrompt(prompt_token_ids=rewriting.token_ids(ids))
        if found := salt or rewriting.cache_salt:
            prompt["cache_salt"] = found
        sampling = SamplingParams(
            temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, output_kind=RequestOutputKind.DELTA, extra_args=extra
        )
        started, first = time.perf_counter(), None
        stream = self.engine._engine.generate(prompt, sampling, request_id=uuid.uuid4().hex, lora_request=lora)
        async for _ in stream:
            first = first or time.perf_counter() - started
        return first

    async def throughput(self, make) -> float:
        """Requests per second of `REQUESTS` at once; make(i) → arguments of `request`."""
        rates = []
        for _ in range(self.rounds + 1):
            started = time.perf_counter()
            await asyncio.gather(*(self.request(*make(number)) for number in range(REQUESTS)))
            rates.append(REQUESTS / (time.perf_counter() - started))
        return statistics.median(rates[1:])

    async def interleaved(self, *makes) -> list[float]:
        """Median throughput of each, measured turn by turn so that drift of the machine meets all of them."""
        rates = [[] for _ in makes]
        for turn in range(self.rounds + 1):
            for position, make in enumerate(makes):
                started = time.perf_counter()
                await asyncio.gather(*(self.request(*make(number)) for number in range(REQUESTS)))
                if turn:
                    rates[position].append(REQUESTS / (time.perf_counter() - started))
        return [statistics.median(rate) for rate in rates]

    async def ttft(self, *makes) -> list[float]:
        """Median seconds to the first token of single requests, measured turn by turn."""
        seconds = [[] for _ in makes]
        for turn in range(4 * self.rounds + 2):
            for position, make in enumerate(makes):
                first = await self.request(*make(turn))
                if turn >= 2:
                    seconds[position].append(first)
        return [statistics.median(each) for each in seconds]


async def resident_vs_cached_text(bench: Bench) -> dict[str, float]:
    """(a) A resident prefix against as many text tokens that are already in vLLM's prefix cache."""
    prefix, text = bench.prefix(512), bench.text(512)

    def with_prefix(_):
        return bench.text(QUESTION_TOKENS), prefix

    def with_text(_):
        return [*text, *bench.text(QUESTION_TOKENS)], None

    rate_prefix, rate_text = await bench.interleaved(with_prefix, with_text)
    ttft_prefix, ttft_text = await bench.ttft(with_prefix, with_text)
    return {"throughput": rate_prefix / rate_text, "ttft": ttft_text / ttft_prefix}


async def prefix_vs_document(bench: Bench, prefix_tokens: int, document_tokens: int) -> dict[str, float]:
    """(b) A prefix against the document in the prompt, without and with vLLM's prefix cache."""
    prefix, text = bench.prefix(prefix_tokens), bench.text(document_tokens)

    def with_prefix(_):
        return bench.text(QUESTION_TOKENS), prefix

    def cached(_):
        return [*text, *bench.text(QUESTION_TOKENS)], None

    rate_prefix, rate_cached = await bench.interleaved(with_prefix, cached)
    started = time.perf_counter()
    some = 4
    for _ in range(some):  # a salt of its own: nothing of it is in the cache
        await bench.request([*text, *bench.text(QUESTION_TOKENS)], None, uuid.uuid4().hex)
    rate_uncached = some / (time.perf_counter() - started)
    return {"uncached": rate_prefix / rate_uncached, "cached": rate_prefix / rate_cached}


async def zipf64_vs_single(bench: Bench) -> tuple[dict[str, float], float]:
    """(c) 64 tenants' prefixes under Zipf(1.0) against one prefix; also returns the Zipf rate for (e)."""
    prefixes = [bench.prefix(TENANT_TOKENS) for _ in range(TENANTS)]
    chance = 1 / np.arange(1, TENANTS + 1)
    chance /= chance.sum()

    def zipf(_):
        return bench.text(QUESTION_TOKENS), prefixes[bench.numbers.choice(TENANTS, p=chance)]

    def single(_):
        return bench.text(QUESTION_TOKENS), prefixes[0]

    for prefix in prefixes:
        await bench.request(bench.text(QUESTION_TOKENS), prefix)
    rate_zipf, rate_single = await bench.interleaved(zipf, single)
    return {"throughput": rate_zipf / rate_single}, rate_zipf


async def lora64(bench: Bench, rate_prefix: float) -> dict[str, float]:
    """(e) The same 64 tenants, each with a LoRA adapter of a prefix's bytes."""
    from vllm.lora.request import LoRARequest

    adapters = [LoRARequest(f"tenant-{number}", number + 1, str(_lora(bench, number))) for number in range(TENANTS)]
    chance = 1 / np.arange(1, TENANTS + 1)
    chance /= chance.sum()

    def make(_):
        return bench.text(QUESTION_TOKENS), None, None, adapters[bench.numbers.choice(TENANTS, p=chance)]

    return {"throughput": rate_prefix / await bench.throughput(make)}


def _lora(bench: Bench, number: int) -> Path:
    folder = bench.folder / f"lora-{number}"
    folder.mkdir()
    generator, tensors = torch.Generator().manual_seed(number), {}
    for layer in range(30):
        for name, out in (("q_proj", 576), ("v_proj", 192)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(LORA_RANK, 576, generator=generator) / 100
            tensors[f"{stem}.lora_B.weight"] = torch.randn(out, LORA_RANK, generator=generator) / 100
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": LORA_RANK,
        "lora_alpha": LORA_RANK,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def cold_load(bench: Bench) -> dict[str, float]:
    """(d) Seconds of a cold load over the seconds that reading its bytes from the same disk takes; caches dropped.

    ratio: with the host tier's spare, which is there unless loads follow each other at once; without_spare: the first load.
    """
    source = ArtifactSource(bench.store, bench.identity, require_gate=False)
    prefixes = [bench.prefix(1024) for _ in range(3)]
    seconds: dict[str, list[float]] = {"read": [], "without": [], "with": []}
    kinds = list(seconds)
    for number in range(-1, bench.rounds):
        for prefix in prefixes:
            path = Path(prefix.folder) / TENSOR_FILE
            kinds.append(kinds.pop(0))  # none is always the first to touch the disk
            for kind in kinds:
                with tempfile.TemporaryDirectory(dir="/dev/shm") as tier:
                    if kind == "with":
                        make_spare(Path(tier), path.stat().st_size)
                    (target := Path(tier) / "loading").mkdir()
                    _drop_cache(path)
                    started = time.perf_counter()
                    if kind == "read":
                        _read(path)
                    else:
                        source.load(prefix.digest, target)
                    spent = time.perf_counter() - started
                    while kind != "read" and not (Path(tier) / SPARE_FILE).exists():
                        time.sleep(0.001)  # memory is being set aside
                if number >= 0:
                    seconds[kind].append(spent)
    read = statistics.median(seconds["read"])
    return {
        "ratio": statistics.median(seconds["with"]) / read,
        "without_spare": statistics.median(seconds["without"]) / read,
    }


def _read(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(4 << 20):
            pass


def _drop_cache(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


WANTED = {
    "resident_vs_cached_text.throughput": 0.98,
    "resident_vs_cached_text.ttft": 0.98,
    "prefix_vs_document.uncached": 26.4,
    "prefix_vs_document.cached": 3.0,
    "zipf64_vs_single.throughput": 0.9,
}
PARTS = ("cold_load", "resident_vs_cached_text", "prefix_vs_document", "zipf64_vs_single", "lora64")


async def run(parts: list[str], rounds: int, dtype: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), rounds, dtype, with_lora=False)
        if "cold_load" in parts:
            found["cold_load"] = cold_load(bench)
        if set(parts) - {"cold_load"}:
            await bench.engine.start()
        if "resident_vs_cached_text" in parts:
            found["resident_vs_cached_text"] = await resident_vs_cached_text(bench)
        if "prefix_vs_document" in parts:
            found["prefix_vs_document"] = await prefix_vs_document(bench, 512, 3000)
            found["prefix_vs_document_demo"] = await prefix_vs_document(bench, DEMO["prefix"], DEMO["document"])
        if {"zipf64_vs_single", "lora64"} & set(parts):
            found["zipf64_vs_single"], rate = await zipf64_vs_single(bench)
        if set(parts) - {"cold_load"}:
            bench.engine.stop()
        if "lora64" in parts:
            bench = Bench(Path(folder) / "lora", rounds, dtype, with_lora=True)
            bench.folder.mkdir()
            await bench.engine.start()
            found["lora64"] = await lora64(bench, rate)
            bench.engine.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the ratios here")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    found = asyncio.run(run(options.only, options.rounds, options.dtype))
    rows = [(f"{part}.{key}", value) for part, ratios in found.items() for key, value in ratios.items()]
    table = Table("ratio", "measured", "wanted")
    for name, value in rows:
        table.add_row(name, f"{value:.3f}", _wanted(name))
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _wanted(name: str) -> str:
    if name == "cold_load.ratio":
        return "at most 1.5"
    return f"at least {WANTED[name]}" if name in WANTED else ""


if __name__ == "__main__":
    main()
