"""PEFT adapters of type CARTRIDGE and PREFIX_TUNING: `prompt_embeddings` [P, 2·L·H·D], keys of layer l at 2l, values at 2l+1.

Both are handed to the model as its cache before position P, so the numbers are ours as they are.
Source: peft 0.21, `tuners/cartridge` and `tuners/prefix_tuning`.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from lpc_ray.artifacts.formats.layers import Foreign, check_stated_tokens, stack
from lpc_ray.artifacts.formats.untrusted import read_fields, read_file, shown
from lpc_ray.artifacts.manifest import Manifest
from lpc_ray.errors import ArtifactError
from lpc_ray.model.identity import ModelIdentity

CONFIG_FILE = "adapter_config.json"
TENSOR_FILE = "adapter_model.safetensors"
TENSOR = "prompt_embeddings"


def read(path: Path, identity: ModelIdentity) -> Foreign:
    """The prefix in an adapter's folder (or in the folder of the file given).

    A prefix tuning with a projection is saved by PEFT as what it projects to. Raises: ArtifactError for another adapter
    type, an adapter that is no safetensors file, or shapes that do not fit.
    """
    folder = path if path.is_dir() else path.parent
    config = read_fields(folder / CONFIG_FILE)
    where, kind = str(folder / TENSOR_FILE), config.get("peft_type")
    if kind not in ("CARTRIDGE", "PREFIX_TUNING"):
        raise ArtifactError(f"{folder / CONFIG_FILE}: got peft_type {shown(kind)}, wanted CARTRIDGE or PREFIX_TUNING")
    tokens = config.get("num_virtual_tokens")
    if type(tokens) is not int:
        raise ArtifactError(f"{folder / CONFIG_FILE}: got num_virtual_tokens {shown(tokens)}, wanted an integer")
    try:
        tensors = load_tensors(read_file(folder / TENSOR_FILE))
    except SafetensorError as error:
        raise ArtifactError(f"{where}: not a safetensors file: {error}") from error
    if set(tensors) != {TENSOR}:
        raise ArtifactError(f"{where}: got tensors {shown(sorted(tensors))}, wanted {TENSOR} alone")
    shape = (identity.num_layers, 2, identity.num_kv_heads, identity.head_dim)
    flat = tensors[TENSOR]
    if flat.ndim != 2 or flat.shape[1] != torch.Size(shape).numel() or flat.shape[0] != tokens:
        raise ArtifactError(
            f"{where}: got {TENSOR} {list(flat.shape)}, wanted [{tokens}, "
            f"{torch.Size(shape).numel()}] (2 · layers · KV heads · head dim of {identity.model_id})"
        )
    for field, held in _dimensions(identity).items():
        if config.get(field) not in (None, held):
            raise ArtifactError(
                f"{folder / CONFIG_FILE}: got {field} {shown(config[field])}, wanted {held}, as {identity.model_id} has it"
            )
    pairs = flat.reshape(-1, *shape).permute(2, 1, 0, 3, 4)  # [2, L, P, H, D]
    frozen = config.get("num_frozen_tokens", 0) if kind == "CARTRIDGE" else 0
    if type(frozen) is not int or not 0 <= frozen <= flat.shape[0]:
        raise ArtifactError(
            f"{folder / CONFIG_FILE}: got num_frozen_tokens {shown(frozen)}, wanted 0 to {flat.shape[0]}"
        )
    check_stated_tokens(config, flat.shape[0], None, str(folder / CONFIG_FILE))
    keys, values = (stack(pairs[half], f"{TENSOR}, {half}", identity, "tokens_first", where) for half in (0, 1))
    base = config.get("base_model_name_or_path")
    metadata = {"peft_type": kind, "base_model_name_or_path": str(base)}
    made_for = base if isinstance(base, str) else None
    return Foreign(keys, values, frozen, "cartridge" if kind == "CARTRIDGE" else "kv_prefix", metadata, made_for)


def write(folder: Path, manifest: Manifest, keys: torch.Tensor, values: torch.Tensor, peft_type: str) -> None:
    """The adapter's two files. PREFIX_TUNING has no place for the number of frozen tokens."""
    who = manifest.identity
    config: dict[str, Any] = {
        "peft_type": peft_type,
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": who.model_id,
        "revision": who.revision,
        "inference_mode": True,
        "num_virtual_tokens": manifest.num_tokens,
        "num_transformer_submodules": 1,
        **_dimensions(who),
    }
    if peft_type == "CARTRIDGE":
        config["num_frozen_tokens"] = manifest.frozen_tokens
    else:
        config |= {"prefix_projection": False, "encoder_hidden_size": who.num_kv_heads * who.head_dim}
    flat = torch.stack([keys, values], dim=1).permute(2, 0, 1, 3, 4).reshape(manifest.num_tokens, -1)
    (folder / TENSOR_FILE).write_bytes(save_tensors({TENSOR: flat.contiguous()}, metadata={"format": "pt"}))
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2), encoding="utf-8")


def _dimensions(who: ModelIdentity) -> dict[str, int]:
    """PEFT's names; its attention heads are those of the cache."""
    return {
        "num_layers": who.num_layers,
        "num_attention_heads": who.num_kv_heads,
        "token_dim": who.num_kv_heads * who.head_dim,
    }
