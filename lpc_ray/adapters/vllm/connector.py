"""A KV connector that puts learned prefixes into vLLM's own KV blocks.

A request that uses prefixes of P tokens in all carries P placeholder ids before its prompt, and what `lpc_ray.serving.contract`
has: the prefixes, and a cache salt that names them. Several prefixes stand one after the other, each with the phases it was
made with. The first such request has its blocks filled from the artifacts; later ones find those blocks in vLLM's prefix
cache and load nothing. Lengths that are no multiple of the block size are exact: the last, partly filled block belongs to
one request and is filled for it again. A request that breaks the contract ends with an error, and no other with it.

The artifact is read through a memory map, which stays open while a request runs that used it: a preempted request finds
it though the host tier has let it go. This connector holds no tensor.
"""

import logging
import multiprocessing
import os
import re
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from lpc_ray.adapters.vllm.open_prefixes import OpenPrefixes
from lpc_ray.artifacts.handles import ARTIFACTS
from lpc_ray.errors import ArtifactError, DataError
from lpc_ray.model.embedded import prefix_cache
from lpc_ray.serving.contract import Part, placed, total_tokens
from lpc_ray.storage import Store

if TYPE_CHECKING:
    from vllm.forward_context import ForwardContext

logger = logging.getLogger(__name__)

# The device tier's figures in the process that serves requests; vLLM hands them over when its statistics are on.
DEVICE_COUNTS = {"hits": 0, "misses": 0, "evictions": 0, "loaded_bytes": 0, "load_seconds": 0.0}


@dataclass
class PrefixLoad:
    """Rows `start` to `stop` of the prefixes of one request, to be written into its blocks."""

    parts: tuple[Part, ...]
    start: int
    stop: int
    block_ids: list[int]


@dataclass
class PrefixLoads(KVConnectorMetadata):
    """What the worker does before the next step.

    held: request id → the folders that it may need again when it is preempted. refused: request id → a block of it, to be
    told as one that failed.
    """

    held: dict[str, tuple[str, ...]] = field(default_factory=dict)
    loads: list[PrefixLoad] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)


class DeviceStats(KVConnectorStats):
    """Counts since the last report, under the keys of `DEVICE_COUNTS`."""

    def reset(self) -> None:
        self.data = dict.fromkeys(DEVICE_COUNTS, 0)

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        return DeviceStats({key: self.data.get(key, 0) + other.data.get(key, 0) for key in DEVICE_COUNTS})

    def reduce(self) -> dict[str, int | float]:
        return self.data

    def is_empty(self) -> bool:
        return not any(self.data.values())


class DeviceMetrics(KVConnectorPromMetrics):
    """vLLM's hook for a connector's metrics: adds every report to `DEVICE_COUNTS`."""

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for key, value in transfer_stats_data.items():
            DEVICE_COUNTS[key] += value


class LearnedPrefixConnector(KVConnectorBase_V1):
    """LPC artifact → vLLM's KV blocks; scheduler and worker side. Nothing is ever saved back.

    `kv_connector_extra_config`: with a `library` requests may name its prefixes only, else any folder: whoever can send
    `kv_transfer_params` is then this project's own code.

    Raises: ValueError at start-up for models whose attention has no per-head keys and values (MLA), for hybrid models and
    sliding windows that vLLM has not been set to disable, and for a `kv_load_failure_policy` other than "fail", under which
    vLLM would compute the placeholders as if they were text.
    """

    def __init__(self, vllm_config, role: KVConnectorRole, kv_cache_config=None):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        if vllm_config.model_config.use_mla:
            raise ValueError(
                f"learned prefixes need per-head keys and values; got an MLA model, {vllm_config.model_config.model}"
            )
        groups = kv_cache_config.kv_cache_groups if kv_cache_config is not None else []
        if len(groups) > 1 or any(getattr(group.kv_cache_spec, "sliding_window", None) for group in groups):
            raise ValueError(
                f"learned prefixes need full attention in every layer; {vllm_config.model_config.model} has "
                f"{len(groups)} KV cache group(s) with sliding-window or hybrid layers: start vLLM with "
                "disable_sliding_window, and a max_model_len within the window"
            )
        assert vllm_config.kv_transfer_config is not None
        policy = vllm_config.kv_transfer_config.kv_load_failure_policy
        if policy != "fail":
            raise ValueError(f'kv_load_failure_policy must be "fail" for learned prefixes; got "{policy}"')
        library = vllm_config.kv_transfer_config.kv_connector_extra_config.get("library")
        self._folders = None if library is None else library_folders(library)
        _exit_with_parent()
        self._block_size = vllm_config.cache_config.block_size
        self._planned = PrefixLoads()
        self._written: set[str] = set()  # the salts under which prefixes were put into blocks
        self._failed_blocks: set[int] = set()
        self._refusals: dict[str, int] = {}  # request id → which of its blocks is to fail
        self._refused: set[str] = set()
        self._open = OpenPrefixes()
        self._stats = DeviceStats()
        self._stats.reset()

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        if self._stats.is_empty():
            return None
        counted, self._stats = self._stats, DeviceStats()
        self._stats.reset()
        return counted

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        return DeviceStats(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return DeviceMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # Scheduler side

    def get_num_new_matched_tokens(self, request, num_computed_tokens: int) -> tuple[int, bool]:
        """Rows to inject after the computed ones, at once; one that will fail to arrive, for a request to be refused."""
        try:
            return max(0, total_tokens(self._placed(request)) - num_computed_tokens), False
        except DataError as error:
            logger.error("request %s is refused: %s", request.request_id, error)
            self._refusals[request.request_id] = num_computed_tokens // self._block_size
            return 1, True  # never fewer than one token is left to compute

    def _placed(self, request) -> tuple[Part, ...]:
        """The prefixes that a request asks for. Raises: DataError when it may not have them so."""
        parts = placed(request.kv_transfer_params, request.cache_salt, request.num_prompt_tokens)
        if parts and getattr(request.sampling_params, "prompt_logprobs", None) is not None:
            raise DataError("got prompt_logprobs, wanted none: placeholders have no logits")
        for part in parts:
            if self._folders is not None and part.folder not in {f"{root}/{part.digest}" for root in self._folders}:
                raise DataError(f"got folder {part.folder!r}, wanted that of {part.digest} in the library")
        return parts

    def update_state_after_alloc(self, request, blocks, num_external_tokens: int) -> None:
        failing = self._refusals.pop(request.request_id, None)
        if failing is not None:
            self._planned.refused[request.request_id] = blocks.get_block_ids()[0][failing]
            return
        parts = self._placed(request)
        if not parts:
            return
        self._planned.held[request.request_id] = tuple(part.folder for part in parts)
        stop = total_tokens(parts)
        # A partly filled last block is written for every request; only whole blocks can be hit or missed.
        if num_external_tokens <= stop % self._block_size:
            self._stats.data["hits"] += 1
        else:
            self._stats.data["misses"] += 1
            self._stats.data["evictions"] += request.cache_salt in self._written
            self._written.add(request.cache_salt)  # pyright: ignore[reportArgumentType]  # set with every prefix
        if num_external_tokens:
            start, block_ids = stop - num_external_tokens, list(blocks.get_block_ids()[0])
            self._planned.loads.append(PrefixLoad(parts, start, stop, block_ids))

    def build_connector_meta(self, scheduler_output) -> PrefixLoads:
        planned, self._planned = self._planned, PrefixLoads()
        return planned

    def request_finished(self, request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._refusals.pop(request.request_id, None)
        return False, None

    # Worker side

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, PrefixLoads)
        self._refused.update(metadata.refused)
        self._failed_blocks.update(metadata.refused.values())
        for request_id, folders in metadata.held.items():
            try:
                self._open.hold(request_id, folders)
            except Exception as error:  # its load, if it has one, fails below
                logger.error("prefixes %s cannot be opened: %s", folders, error)
        if not metadata.loads:
            return
        layers = _attention_layers(forward_context.no_compile_layers)
        for load in metadata.loads:
            try:
                self._fill(layers, load)
            except Exception as error:  # a request must fail alone: the engine serves others
                logger.error("prefixes %s were not loaded: %s", [part.folder for part in load.parts], error)
                self._failed_blocks.update(self._blocks_of(load))

    def _fill(self, layers: dict[int, Any], load: PrefixLoad) -> None:
        started = time.perf_counter()
        for part in load.parts:
            start, stop = max(load.start, part.offset), part.offset + part.num_tokens
            if start < stop:
                self._fill_part(layers, part, torch.arange(start, stop), load.block_ids)
        self._stats.data["load_seconds"] += time.perf_counter() - started

    def _fill_part(self, layers: dict[int, Any], part: Part, positions: torch.Tensor, block_ids: list[int]) -> None:
        """Write the rows of `part` that stand at `positions` (int [rows]) of the request."""
        blocks = torch.tensor(block_ids)[positions // self._block_size]
        slots = blocks * self._block_size + positions % self._block_size
        first, last = int(positions[0]) - part.offset, int(positions[-1]) + 1 - part.offset
        tensors = self._open.tensors(part.folder)
        keys, values = tensors.get_slice("keys"), tensors.get_slice("values")
        num_layers, num_tokens, num_heads, _ = keys.get_shape()
        if num_tokens < part.num_tokens or num_layers <= max(layers):
            raise ArtifactError(
                f"{part.folder}: got [{num_layers} layers, {num_tokens} tokens], wanted at least "
                f"[{max(layers) + 1}, {part.num_tokens}]"
            )
        for index, layer in layers.items():
            heads = _local_heads(num_heads, layer.impl.num_kv_heads)
            cache = layer.kv_cache
            key, value = keys[index, first:last, heads], values[index, first:last, heads]
            layer.impl.do_kv_cache_update(
                layer,
                key.to(cache.device, _compute_dtype(layer, key)).contiguous(),
                value.to(cache.device, _compute_dtype(layer, value)).contiguous(),
                cache,
                slots.to(cache.device),
            )
            self._stats.data["loaded_bytes"] += key.nbytes + value.nbytes

    def _blocks_of(self, load: PrefixLoad) -> list[int]:
        first, last = load.start // self._block_size, (load.stop - 1) // self._block_size
        return load.block_ids[first : last + 1]

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        self._open.release(finished_req_ids)
        refused, self._refused = self._refused, set()
        return None, refused or None

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer, attn_metadata, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return


def _exit_with_parent() -> None:
    """End vLLM's engine and worker processes when the actor that started them is killed; else they would run on."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="lpc-parent-watch", daemon=True).start()


def library_folders(library: str) -> tuple[str, ...]:
    """Where the local folders of a library's prefixes lie: its own, or the copies of a remote one."""
    store = Store(library) / ARTIFACTS
    return (store.path() if store.is_local else str(prefix_cache()),)


def _attention_layers(modules: dict[str, Any]) -> dict[int, Any]:
    """Layer index → the attention module that owns that layer's KV cache on this rank."""
    layers = {}
    for name, module in modules.items():
        cache = getattr(module, "kv_cache", None)
        if cache is None or not hasattr(module, "impl"):
            continue
        numbers = re.findall(r"\.(\d+)\.", name)
        if len(numbers) != 1 or int(numbers[0]) in layers:
            raise ArtifactError(f"got no layer of the prefix that belongs to vLLM's attention module {name!r}")
        layers[int(numbers[0])] = module
    return layers


def _local_heads(num_heads: int, num_local: int) -> slice:
    """The KV heads of this tensor-parallel rank (vLLM replicates heads when there are fewer heads than ranks)."""
    if num_local == num_heads:
        return slice(0, num_heads)
    from vllm.distributed.parallel_state import get_tensor_model_parallel_world_size

    ranks_per_head = max(1, get_tensor_model_parallel_world_size() // num_heads)
    first = get_tensor_model_parallel_rank() // ranks_per_head * num_local
    return slice(first, first + num_local)


def _compute_dtype(layer, tensor: torch.Tensor) -> torch.dtype:
    """The dtype vLLM hands to `do_kv_cache_update`: the model's own (a quantised cache converts inside)."""
    dtype = getattr(layer, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else tensor.dtype


ReasonCacheConnector = LearnedPrefixConnector  # the name in the published serving contract
