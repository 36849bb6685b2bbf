"""The fields of an LPC's `lpc.json`, and the reader that accepts nothing else."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from lpc_ray import plain_json
from lpc_ray.errors import ArtifactError
from lpc_ray.model.identity import ModelIdentity

Kind = Literal["cartridge", "reasoncache", "kv_prefix", "skill"]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{32,64}$")]
_MOST = 2**31 - 1


def _floating(dtype: str) -> str:
    found = getattr(torch, dtype, None)
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ValueError("wanted a floating-point dtype of torch's")
    return dtype


@dataclass(frozen=True)
class Manifest:
    """`digest` covers the tensors and the identity; provenance, costs and verification may be rewritten.

    layout: LPHD, layers × prefix tokens × KV heads × head dim.
    Keys are stored after RoPE, as if at positions 0…num_tokens−1, of which the first `frozen_tokens` were not trained.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    digest: Digest
    identity: ModelIdentity
    num_tokens: Annotated[int, Field(gt=0, le=_MOST)]
    frozen_tokens: Annotated[int, Field(ge=0, le=_MOST)]
    dtype: Annotated[str, AfterValidator(_floating)]
    kind: Kind = "cartridge"
    layout: Literal["LPHD"] = "LPHD"
    position_rule: str = "own phases 0..P-1; the prompt starts at the sum of visible lengths"
    k_max: Annotated[int, Field(gt=0, le=_MOST)] = 1
    provenance: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)
    verification: dict[str, Any] = field(default_factory=dict)
    schema_version: Literal[3] = 3

    @property
    def num_bytes(self) -> int:
        """Bytes of K and V: layers · KV heads · head dim · 2 · bytes(dtype) · P."""
        who = self.identity
        size = getattr(torch, self.dtype).itemsize
        return who.num_layers * who.num_kv_heads * who.head_dim * 2 * size * self.num_tokens


_READER = TypeAdapter(Manifest)


def parse_manifest(text: str, where: str) -> Manifest:
    """Raises: ArtifactError for anything but a manifest of this schema version."""
    try:
        plain_json.parse(text)
        manifest = _READER.validate_json(text)
    except ValidationError as error:
        raise ArtifactError(f"{where}: not an LPC manifest: {_first_problem(error)}") from error
    except ValueError as error:
        raise ArtifactError(f"{where}: not an LPC manifest: {error}") from error
    if manifest.frozen_tokens > manifest.num_tokens:
        raise ArtifactError(
            f"{where}: got {manifest.frozen_tokens} frozen tokens, wanted at most the {manifest.num_tokens} tokens"
        )
    return manifest


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    wanted = problem["msg"].removeprefix("Value error, ").replace("Input should be", "wanted")
    if not problem["loc"]:
        return wanted
    name = ".".join(map(str, problem["loc"]))[:80]
    return (
        f"{name}: {wanted}" if problem["type"] == "missing" else f"{name}: got {repr(problem['input'])[:80]}, {wanted}"
    )
