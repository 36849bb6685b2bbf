"""The LPC on disk: a folder with `prefix.safetensors` and `lpc.json`, named by its digest.

Published by writing beside the target and renaming; in an object store the manifest is written last, and a folder
without a manifest does not exist. Nothing is pickled.
"""

import os
import shutil
import uuid
from dataclasses import asdict, dataclass, field, replace
from json import JSONDecodeError, loads
from pathlib import Path
from typing import Any, Literal

import torch
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from lpc_ray.errors import ArtifactError, PrefixNotFoundError, StorageError
from lpc_ray.handles import MANIFEST_FILE
from lpc_ray.identity import ModelIdentity, check_same
from lpc_ray.records import digest_of
from lpc_ray.storage import TEMPORARY, Store

SCHEMA_VERSION = 2
TENSOR_FILE = "prefix.safetensors"
LAYOUT = "LPHD"
Kind = Literal["cartridge", "reasoncache", "kv_prefix", "skill"]


@dataclass(frozen=True)
class Manifest:
    """`lpc.json`. `digest` covers the tensors and the identity; provenance, costs and verification may be told anew.

    layout: LPHD, layers × prefix tokens × KV heads × head dim.
    Keys are stored after RoPE, as if at positions 0…num_tokens−1, of which the first `frozen_tokens` were not trained.
    """

    digest: str
    identity: ModelIdentity
    num_tokens: int
    frozen_tokens: int
    dtype: str
    kind: Kind = "cartridge"
    layout: str = LAYOUT
    position_rule: str = "own phases 0..P-1; the prompt starts at the sum of visible lengths"
    k_max: int = 1
    provenance: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)
    verification: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def num_bytes(self) -> int:
        """Bytes of K and V: layers · KV heads · head dim · 2 · bytes(dtype) · P."""
        who = self.identity
        size = getattr(torch, self.dtype).itemsize
        return who.num_layers * who.num_kv_heads * who.head_dim * 2 * size * self.num_tokens


def prefix_digest(keys: torch.Tensor, values: torch.Tensor, identity: ModelIdentity, frozen_tokens: int) -> str:
    """The identity of a prefix: BLAKE3 over the bytes of both tensors, their shapes and the model's identity."""
    hasher = blake3()
    for tensor in (keys, values):
        hasher.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest_of_hash(hasher.hexdigest(), list(keys.shape), keys.dtype, identity, frozen_tokens)


def digest_of_hash(
    tensor_hash: str, shape: list[int], dtype: torch.dtype, identity: ModelIdentity, frozen_tokens: int
) -> str:
    """`prefix_digest` of tensors whose bytes, keys before values, have the BLAKE3 hash `tensor_hash`."""
    compared = {key: value for key, value in identity.as_dict().items() if key not in ("model_id", "revision")}
    return digest_of(tensor_hash, shape, str(dtype), frozen_tokens, compared)


def publish(
    store: Store,
    keys: torch.Tensor,
    values: torch.Tensor,
    identity: ModelIdentity,
    frozen_tokens: int,
    **told: Any,
) -> Manifest:
    """Write an LPC into `store` (once: the same tensors and identity are one artifact) and return its manifest.

    keys, values: [L, P, H, D], same dtype. `told`: kind, provenance, costs, verification.
    Raises: ArtifactError for shapes that do not fit the identity or values that are not finite; StorageError.
    """
    _check_tensors(keys, values, identity, where="publish")
    digest = prefix_digest(keys, values, identity, frozen_tokens)
    manifest = Manifest(
        digest=digest,
        identity=identity,
        num_tokens=keys.shape[1],
        frozen_tokens=frozen_tokens,
        dtype=str(keys.dtype).removeprefix("torch."),
        **told,
    )
    if store.exists(f"{digest}/{MANIFEST_FILE}"):
        return manifest
    tensors = save_tensors({"keys": keys.detach().cpu().contiguous(), "values": values.detach().cpu().contiguous()})
    staged = f"{TEMPORARY}{uuid.uuid4().hex}" if store.is_local else digest
    try:
        store.write_bytes(f"{staged}/{TENSOR_FILE}", tensors)
        store.write_json(f"{staged}/{MANIFEST_FILE}", asdict(manifest))
        if store.is_local:
            _rename_unless_present(Path(store.path(staged)), Path(store.path(digest)))
    finally:
        if store.is_local:
            shutil.rmtree(store.path(staged), ignore_errors=True)
    return manifest


def _rename_unless_present(staged: Path, target: Path) -> None:
    try:
        os.rename(staged, target)
    except OSError as error:
        if not (target / MANIFEST_FILE).exists():
            raise StorageError(f"cannot write {target}: {error.strerror}") from error


def tell(store: Store, digest: str, verification: dict[str, Any]) -> Manifest:
    """Set what the manifest of LPC `digest` tells of its verification; the digest does not cover that.

    Raises: PrefixNotFoundError for a digest the store does not hold.
    """
    path = f"{digest}/{MANIFEST_FILE}"
    if not store.exists(path):
        raise PrefixNotFoundError(f"prefix {digest}: not in {store}")
    manifest = replace(parse_manifest(store.read_bytes(path).decode(), store.path(path)), verification=verification)
    store.write_json(path, asdict(manifest))
    return manifest


def read_manifest(folder: Path | str) -> Manifest:
    """The manifest of the LPC in local `folder`.

    Raises: PrefixNotFoundError when there is none, ArtifactError when it is malformed.
    """
    path = Path(folder) / MANIFEST_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise PrefixNotFoundError(f"{folder}: holds no LPC ({MANIFEST_FILE} is missing)") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: cannot be read: {error}") from error
    return parse_manifest(text, where=str(path))


def parse_manifest(text: str, where: str) -> Manifest:
    """Raises: ArtifactError for anything but a manifest of this schema version."""
    try:
        raw = loads(text)
        version = raw["schema_version"]
        if version != SCHEMA_VERSION:
            raise ArtifactError(f"{where}: got schema_version {version}, wanted {SCHEMA_VERSION}")
        manifest = Manifest(**{**raw, "identity": ModelIdentity(**raw["identity"])})
        who = manifest.identity
        counts = (manifest.num_tokens, manifest.frozen_tokens, who.num_layers, who.num_kv_heads, who.head_dim)
        if not all(type(count) is int for count in counts):
            raise ArtifactError(
                f"{where}: got tokens, frozen tokens, layers, KV heads, head dim {counts}, wanted integers"
            )
        if not isinstance(getattr(torch, manifest.dtype, None), torch.dtype):
            raise ArtifactError(f"{where}: got dtype {manifest.dtype!r}, wanted a torch dtype")
        return manifest
    except (JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{where}: not an LPC manifest: {type(error).__name__}: {error}") from error


def stored_manifest(store: Store, digest: str) -> Manifest:
    """The manifest of LPC `digest` in a store of artifacts.

    Raises: PrefixNotFoundError for a digest the store does not hold, ArtifactError for a malformed manifest.
    """
    path = f"{digest}/{MANIFEST_FILE}"
    if not store.exists(path):
        raise PrefixNotFoundError(f"prefix {digest}: not in {store}")
    return parse_manifest(store.read_bytes(path).decode("utf-8", "replace"), where=store.path(path))


def load_prefix(folder: Path | str, wanted: ModelIdentity) -> tuple[Manifest, torch.Tensor, torch.Tensor]:
    """Manifest, keys and values [L, P, H, D] of the LPC in local `folder`, checked against the model and the digest.

    Raises: PrefixNotFoundError; ArtifactError for another model, a corrupt file, or tensors that do not fit.
    """
    manifest = read_manifest(folder)
    check_same(manifest.identity, wanted, where=str(folder))
    path = Path(folder) / TENSOR_FILE
    try:
        tensors = load_tensors(path.read_bytes())
        keys, values = tensors["keys"], tensors["values"]
    except (OSError, SafetensorError, KeyError) as error:
        raise ArtifactError(f"{path}: corrupt or missing tensors: {error}") from error
    _check_tensors(keys, values, manifest.identity, where=str(path))
    got, told = (keys.shape[1], str(keys.dtype)), (manifest.num_tokens, f"torch.{manifest.dtype}")
    if got != told or not 0 <= manifest.frozen_tokens <= manifest.num_tokens:
        raise ArtifactError(
            f"{path}: got {got[0]} tokens of {got[1]}, wanted {told[0]} of {told[1]}, {manifest.frozen_tokens} of them frozen, "
            "as the manifest tells"
        )
    digest = prefix_digest(keys, values, manifest.identity, manifest.frozen_tokens)
    if digest != manifest.digest:
        raise ArtifactError(f"{path}: got digest {digest} from the tensors, wanted {manifest.digest} of the manifest")
    return manifest, keys, values


def _check_tensors(keys: torch.Tensor, values: torch.Tensor, identity: ModelIdentity, where: str) -> None:
    got = [list(keys.shape), list(values.shape)]
    num_tokens = keys.shape[1] if keys.ndim == 4 else 0
    wanted = [identity.num_layers, num_tokens, identity.num_kv_heads, identity.head_dim]
    if got != [wanted, wanted] or num_tokens == 0:
        raise ArtifactError(f"{where}: got keys {got[0]} and values {got[1]}, wanted both {wanted} (LPHD, P > 0)")
    if keys.dtype != values.dtype or not keys.dtype.is_floating_point:
        raise ArtifactError(f"{where}: got dtypes {keys.dtype} and {values.dtype}, wanted one floating-point dtype")
    if not (torch.isfinite(keys).all() and torch.isfinite(values).all()):
        raise ArtifactError(f"{where}: got keys or values that are not finite")


def fetch(store: Store, digest: str, cache: Path) -> Path:
    """A local folder that holds LPC `digest`: the store's own where it is local, else a copy below `cache`.

    Raises: PrefixNotFoundError for a digest the store does not hold.
    """
    if not store.exists(f"{digest}/{MANIFEST_FILE}"):
        raise PrefixNotFoundError(f"prefix {digest}: not in {store}")
    if store.is_local:
        return Path(store.path(digest))
    target = cache / digest
    if not (target / MANIFEST_FILE).exists():
        local = Store(str(cache))
        local.write_bytes(f"{digest}/{TENSOR_FILE}", store.read_bytes(f"{digest}/{TENSOR_FILE}"))
        local.write_bytes(f"{digest}/{MANIFEST_FILE}", store.read_bytes(f"{digest}/{MANIFEST_FILE}"))
    return target
