"""From a foreign file's per-layer tensors to keys and values [L, P, H, D], with every shape held against the model first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from lpc_ray.artifacts.formats.untrusted import shown
from lpc_ray.artifacts.manifest import Kind
from lpc_ray.errors import ArtifactError
from lpc_ray.model.identity import ModelIdentity

Layout = Literal["heads_first", "tokens_first"]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Foreign:
    """keys, values: [L, P, H, D] in the file's own dtype. `metadata`: what the file says of itself, for the provenance.

    made_for: the model that the file names, if any.
    """

    keys: torch.Tensor
    values: torch.Tensor
    frozen_tokens: int = 0
    kind: Kind = "cartridge"
    metadata: dict[str, Any] = field(default_factory=dict)
    made_for: str | None = None


def stack(
    layers: Any, name: str, identity: ModelIdentity, layout: Layout | None, where: str, least: int = 1
) -> torch.Tensor:
    """[L, P, H, D] from one tensor per layer, or one over all layers, each [1, H, P, D], [H, P, D] or [P, H, D].

    layout None: inferred from which axis has the model's number of KV heads. least: the fewest tokens a layer may have.
    Raises: ArtifactError for a layer too few or too many, a shape that is not the model's, layers of several lengths or
    dtypes, values that are not finite, or axes that cannot be distinguished.
    """
    if not isinstance(layers, (torch.Tensor, Sequence)) or isinstance(layers, (str, bytes)):
        raise ArtifactError(f"{where}: {name}: got {type(layers).__name__}, wanted one tensor per layer")
    if isinstance(layers, torch.Tensor) and layers.ndim == 0:
        raise ArtifactError(f"{where}: {name}: got a single number, wanted one tensor per layer")
    if len(layers) != identity.num_layers:
        raise ArtifactError(
            f"{where}: {name}: got {len(layers)} layers, wanted {identity.num_layers} of {identity.model_id}"
        )
    found = [
        _tokens_first(layer, f"{name}, layer {number}", identity, layout, where, least)
        for number, layer in enumerate(layers)
    ]
    shapes, dtypes = {tuple(layer.shape) for layer in found}, {layer.dtype for layer in found}
    if len(shapes) > 1 or len(dtypes) > 1:
        raise ArtifactError(
            f"{where}: {name}: got layers of shapes {sorted(shapes)} and dtypes {dtypes}, wanted one of each"
        )
    for number, layer in enumerate(found):
        if not torch.isfinite(layer).all():
            raise ArtifactError(f"{where}: {name}, layer {number}: got values that are not finite")
    return torch.stack(found)


_COUNTS = (
    "num_tokens",
    "n_tokens",
    "num_virtual_tokens",
    "virtual_tokens",
    "virtual_token_count",
    "num_prefix_tokens",
    "prefix_tokens",
    "prefix_length",
    "prefix_len",
    "num_cartridge_tokens",
    "cartridge_tokens",
    "budget_tokens",
    "total_tokens",
    "seq_len",
    "seq_length",
)
_FROZEN_COUNTS = ("num_frozen_tokens", "frozen_tokens")


def check_stated_tokens(stated: Mapping[Any, Any], tokens: int, frozen: int | None, where: str) -> None:
    """Raises: ArtifactError where what a file says of itself contradicts the tokens that it holds.

    frozen: of these; None: the format does not say which.
    """
    for name in _FROZEN_COUNTS if frozen is None else ():
        said = stated.get(name)
        if isinstance(said, int | float) and not 0 <= said <= tokens:
            raise ArtifactError(f"{where}: states {said} as {name}, wanted 0 to the {tokens} tokens that it holds")
    for names, held in ((_COUNTS, tokens), (_FROZEN_COUNTS, frozen)):
        for name in names:
            said = stated.get(name)
            said = said.item() if isinstance(said, torch.Tensor) and said.numel() == 1 else said
            if said is not None and held is not None and not (type(said) in (int, float) and said == held):
                raise ArtifactError(f"{where}: holds {held} tokens, wanted the {shown(said)} that it states as {name}")


def _tokens_first(
    tensor: Any, name: str, identity: ModelIdentity, layout: Layout | None, where: str, least: int
) -> torch.Tensor:
    """[P, H, D] of one layer."""
    if not isinstance(tensor, torch.Tensor):
        raise ArtifactError(f"{where}: {name}: got {type(tensor).__name__}, wanted a tensor")
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.dtype not in DTYPES:
        raise ArtifactError(
            f"{where}: {name}: got a {tensor.dtype} tensor ({tensor.layout}, {tensor.device}), wanted a dense float32, "
            "bfloat16 or float16 one"
        )
    heads, head_dim, longest = identity.num_kv_heads, identity.head_dim, identity.max_positions
    shape = tuple(tensor.shape[1:] if tensor.ndim == 4 and tensor.shape[0] == 1 else tensor.shape)
    fits = {"heads_first": shape[:1] == (heads,), "tokens_first": shape[1:2] == (heads,)}
    possible = [one for one, fit in fits.items() if fit and layout in (None, one)]
    if len(shape) != 3 or shape[2] != head_dim or not possible:
        raise ArtifactError(
            f"{where}: {name}: got shape {list(tensor.shape)}, wanted [1, {heads}, P, {head_dim}], [{heads}, P, {head_dim}] "
            f"or [P, {heads}, {head_dim}] of {identity.model_id}"
        )
    if len(possible) == 2:
        raise ArtifactError(
            f"{where}: {name}: shape {list(tensor.shape)} reads as heads first and as tokens first; say which with --layout"
        )
    dense = tensor.detach().reshape(shape)
    dense = dense.transpose(0, 1) if possible == ["heads_first"] else dense
    if not least <= dense.shape[0] < longest:
        raise ArtifactError(
            f"{where}: {name}: got {dense.shape[0]} prefix tokens, wanted {least} to {longest - 1} of the context"
        )
    return dense
