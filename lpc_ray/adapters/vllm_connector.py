"""A KV connector that puts a learned prefix into vLLM's own KV blocks.

A request that uses a prefix of P tokens carries P placeholder ids before its prompt, the prefix's digest as
`cache_salt`, and `kv_transfer_params={"lpc": {"digest": ..., "folder": ..., "num_tokens": P}}`. The first such request
has its blocks filled from the artifact; later ones find those blocks in vLLM's prefix cache, which is salted by the
digest, and load nothing. Lengths that are no multiple of the block size are exact: the last, partly filled block
belongs to one request and is filled for it again.

The artifact is read through a memory map on each load; this connector holds no tensor.
"""

import logging
import multiprocessing
import os
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from lpc_ray.artifact import TENSOR_FILE
from lpc_ray.errors import ArtifactError

if TYPE_CHECKING:
    from vllm.forward_context import ForwardContext

logger = logging.getLogger(__name__)
REQUEST_KEY = "lpc"


def transfer_params(digest: str, folder: str, num_tokens: int) -> dict[str, Any]:
    """The `kv_transfer_params` of a request that uses the prefix in local `folder`."""
    return {REQUEST_KEY: {"digest": digest, "folder": folder, "num_tokens": num_tokens}}


@dataclass
class PrefixLoad:
    """Rows `start` to `stop` of one prefix, to be written into the request's blocks."""

    digest: str
    folder: str
    start: int
    stop: int
    block_ids: list[int]


@dataclass
class PrefixLoads(KVConnectorMetadata):
    loads: list[PrefixLoad] = field(default_factory=list)


class LearnedPrefixConnector(KVConnectorBase_V1):
    """LPC artifact → vLLM's KV blocks; scheduler and worker side. Nothing is ever saved back.

    Raises: ValueError at start-up for models whose attention has no per-head keys and values (MLA), for hybrid models and
    sliding windows that vLLM was not told to disable, and for a `kv_load_failure_policy` other than "fail", under which
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
        policy = vllm_config.kv_transfer_config.kv_load_failure_policy
        if policy != "fail":
            raise ValueError(f'kv_load_failure_policy must be "fail" for learned prefixes; got "{policy}"')
        _exit_with_parent()
        self._block_size = vllm_config.cache_config.block_size
        self._planned: list[PrefixLoad] = []
        self._failed_blocks: set[int] = set()

    # Scheduler side

    def get_num_new_matched_tokens(self, request, num_computed_tokens: int) -> tuple[int, bool]:
        wanted = _wanted(request)
        if wanted is None:
            return 0, False
        return max(0, wanted["num_tokens"] - num_computed_tokens), False

    def update_state_after_alloc(self, request, blocks, num_external_tokens: int) -> None:
        wanted = _wanted(request)
        if wanted is None or num_external_tokens == 0:
            return
        stop = wanted["num_tokens"]
        self._planned.append(
            PrefixLoad(
                digest=wanted["digest"],
                folder=wanted["folder"],
                start=stop - num_external_tokens,
                stop=stop,
                block_ids=list(blocks.get_block_ids()[0]),
            )
        )

    def build_connector_meta(self, scheduler_output) -> PrefixLoads:
        planned, self._planned = self._planned, []
        return PrefixLoads(loads=planned)

    # Worker side

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, PrefixLoads)
        if not metadata.loads:
            return
        layers = _attention_layers(forward_context.no_compile_layers)
        for load in metadata.loads:
            try:
                self._fill(layers, load)
            except Exception as error:  # a request must fail alone: the engine serves others
                logger.error("prefix %s in %s was not loaded: %s", load.digest, load.folder, error)
                self._failed_blocks.update(self._blocks_of(load))

    def _fill(self, layers: dict[int, Any], load: PrefixLoad) -> None:
        positions = torch.arange(load.start, load.stop)
        blocks = torch.tensor(load.block_ids)[positions // self._block_size]
        slots = blocks * self._block_size + positions % self._block_size
        with safe_open(f"{load.folder}/{TENSOR_FILE}", framework="pt") as tensors:
            keys, values = tensors.get_slice("keys"), tensors.get_slice("values")
            num_layers, num_tokens, num_heads, _ = keys.get_shape()
            if num_tokens != load.stop or num_layers <= max(layers):
                raise ArtifactError(
                    f"{load.folder}: got [{num_layers} layers, {num_tokens} tokens], wanted "
                    f"[more than {max(layers)}, {load.stop}]"
                )
            for index, layer in layers.items():
                heads = _local_heads(num_heads, layer.impl.num_kv_heads)
                cache = layer.kv_cache
                key = keys[index, load.start : load.stop, heads]
                value = values[index, load.start : load.stop, heads]
                layer.impl.do_kv_cache_update(
                    layer,
                    key.to(cache.device, _compute_dtype(layer, key)).contiguous(),
                    value.to(cache.device, _compute_dtype(layer, value)).contiguous(),
                    cache,
                    slots.to(cache.device),
                )

    def _blocks_of(self, load: PrefixLoad) -> list[int]:
        first, last = load.start // self._block_size, (load.stop - 1) // self._block_size
        return load.block_ids[first : last + 1]

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

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


def _wanted(request) -> dict[str, Any] | None:
    return (request.kv_transfer_params or {}).get(REQUEST_KEY)


def _attention_layers(modules: dict[str, Any]) -> dict[int, Any]:
    """Layer index → the attention module that owns that layer's KV cache on this rank."""
    layers = {}
    for name, module in modules.items():
        cache = getattr(module, "kv_cache", None)
        if cache is None or not hasattr(module, "impl"):
            continue
        numbers = re.findall(r"\.(\d+)\.", name)
        if len(numbers) != 1 or int(numbers[0]) in layers:
            raise ArtifactError(f"cannot tell which layer of the prefix belongs to vLLM's attention module {name!r}")
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
