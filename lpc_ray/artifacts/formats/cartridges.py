"""Cartridges files: a torch pickle of per-layer lists, each tensor [1, H, T, D], the frozen part before the trained one.

Source: the released code of arXiv 2506.06266; the frozen lists are called `fixed_*` by older files, `frozen_*` by newer.
"""

import io
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lpc_ray.artifacts.formats.layers import Foreign, check_stated_tokens, stack
from lpc_ray.artifacts.formats.untrusted import load_tensors_only
from lpc_ray.artifacts.manifest import Manifest
from lpc_ray.errors import ArtifactError
from lpc_ray.model.identity import ModelIdentity

FILE = "cartridge.pt"


def read(path: Path, identity: ModelIdentity) -> Foreign:
    """The prefix in a Cartridges file, or in the one of that name in a folder. Raises: ArtifactError for anything else."""
    path = path / FILE if path.is_dir() else path
    payload = load_tensors_only(path)
    if not isinstance(payload, dict) or "trainable_keys" not in payload:
        raise ArtifactError(f"{path}: got {describe(payload)}, wanted a dict with trainable_keys and trainable_values")
    return from_payload(payload, identity, str(path))


def from_payload(payload: dict[str, Any], identity: ModelIdentity, where: str) -> Foreign:
    """Also for connector payloads that carry the same lists. Raises: ArtifactError."""
    parts = {"keys": [], "values": []}
    for name, found in parts.items():
        frozen = [payload[key] for key in (f"frozen_{name}", f"fixed_{name}") if _present(payload.get(key))]
        if len(frozen) > 1:
            raise ArtifactError(f"{where}: got both frozen_{name} and fixed_{name}, wanted one of them")
        if f"trainable_{name}" not in payload:
            raise ArtifactError(f"{where}: got no trainable_{name}")
        for layers, label in [(one, f"frozen {name}") for one in frozen] + [
            (payload[f"trainable_{name}"], f"trained {name}")
        ]:
            found.append(stack(layers, label, identity, "heads_first", where, least=0))
    if len(parts["keys"]) != len(parts["values"]):
        given, missing = ("keys", "values") if len(parts["keys"]) > len(parts["values"]) else ("values", "keys")
        raise ArtifactError(f"{where}: got frozen {given} without frozen {missing}")
    lengths = {name: [part.shape[1] for part in found] for name, found in parts.items()}
    if lengths["keys"] != lengths["values"]:
        raise ArtifactError(
            f"{where}: got {lengths['keys']} tokens of keys and {lengths['values']} of values, wanted as many"
        )
    frozen_tokens = lengths["keys"][0] if len(lengths["keys"]) == 2 else 0
    keys, values = (torch.cat(parts[name], dim=1) for name in ("keys", "values"))
    if not 0 < keys.shape[1] < identity.max_positions:
        raise ArtifactError(
            f"{where}: got {keys.shape[1]} prefix tokens, wanted 1 to {identity.max_positions - 1} of the context"
        )
    check_stated_tokens(payload, keys.shape[1], frozen_tokens, where)
    return Foreign(keys, values, frozen_tokens)


def write(folder: Path, manifest: Manifest, keys: torch.Tensor, values: torch.Tensor) -> None:
    """`cartridge.pt` with the newer names, as parameter lists."""
    split, lists = manifest.frozen_tokens, {}
    for name, tensor in (("keys", keys), ("values", values)):
        heads_first = tensor.transpose(1, 2)[:, None]
        lists[f"trainable_{name}"] = _parameters(heads_first[:, :, :, split:])
        lists[f"frozen_{name}"] = _parameters(heads_first[:, :, :, :split]) if split else nn.ParameterList()
    written = io.BytesIO()
    torch.save(lists, written)
    (folder / FILE).write_bytes(written.getvalue())


def describe(payload: Any) -> str:
    """What was found where a payload should be, in a few words."""
    if isinstance(payload, dict):
        return f"a dict with {str(sorted(map(str, payload))[:8])[:200]}"
    return f"a {type(payload).__name__}"


def _present(layers: Any) -> bool:
    return layers is not None and not (isinstance(layers, (list, tuple)) and len(layers) == 0)


def _parameters(layers: torch.Tensor) -> nn.ParameterList:
    return nn.ParameterList(nn.Parameter(layer.clone(), requires_grad=False) for layer in layers)
