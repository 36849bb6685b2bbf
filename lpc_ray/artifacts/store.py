"""The LPC in a store: a folder with `prefix.safetensors` and `lpc.json`, named by its digest.

Published by writing beside the target and renaming; in an object store, and where a damaged artifact is replaced, the
manifest is written last, and a folder without a manifest does not exist. Nothing is pickled.
"""

import json
import os
import shutil
import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from lpc_ray.artifacts.handles import MANIFEST_FILE
from lpc_ray.artifacts.manifest import Manifest, parse_manifest
from lpc_ray.errors import ArtifactError, PrefixNotFoundError, StorageError
from lpc_ray.model.identity import ModelIdentity, check_same
from lpc_ray.records import digest_of
from lpc_ray.storage import TEMPORARY, Store, remove_stale

TENSOR_FILE = "prefix.safetensors"
Loaded = tuple[Manifest, torch.Tensor, torch.Tensor]


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
    return digest_of(tensor_hash, shape, str(dtype), frozen_tokens, identity.compared())


def describe(
    keys: torch.Tensor, values: torch.Tensor, identity: ModelIdentity, frozen_tokens: int, **fields: Any
) -> Manifest:
    """The manifest of keys and values [L, P, H, D] of one dtype. `fields`: kind, k_max, provenance, costs, verification.

    Raises: ArtifactError for shapes that do not fit the identity or values that are not finite.
    """
    _check_tensors(keys, values, identity, where="publish")
    return Manifest(
        digest=prefix_digest(keys, values, identity, frozen_tokens),
        identity=identity,
        num_tokens=keys.shape[1],
        frozen_tokens=frozen_tokens,
        dtype=str(keys.dtype).removeprefix("torch."),
        **fields,
    )


def publish(
    store: Store,
    keys: torch.Tensor,
    values: torch.Tensor,
    identity: ModelIdentity,
    frozen_tokens: int,
    **fields: Any,
) -> Manifest:
    """Write an LPC into `store` and return its manifest as the store has it, with arguments as for `describe`.

    The same tensors and identity are one artifact: what the store holds of it stays, as do its recorded fields, and is
    replaced where damaged.
    Raises: ArtifactError as `describe`; StorageError.
    """
    manifest = describe(keys, values, identity, frozen_tokens, **fields)
    if _is_whole(store, manifest):
        return stored_manifest(store, manifest.digest)
    tensors = save_tensors({"keys": keys.detach().cpu().contiguous(), "values": values.detach().cpu().contiguous()})
    if store.is_local and not store.exists(manifest.digest):
        _write_beside(store, manifest, tensors)
    else:
        _write_in_place(store, manifest, tensors)
    return stored_manifest(store, manifest.digest)


def _is_whole(store: Store, manifest: Manifest) -> bool:
    try:
        load_stored(store, manifest.digest, manifest.identity)
    except (ArtifactError, PrefixNotFoundError):
        return False
    return True


def _write_beside(store: Store, manifest: Manifest, tensors: bytes) -> None:
    staged = f"{TEMPORARY}{uuid.uuid4().hex}"
    try:
        store.write_bytes(f"{staged}/{TENSOR_FILE}", tensors)
        store.write_json(f"{staged}/{MANIFEST_FILE}", asdict(manifest))
        remove_stale(store.path())
        _rename_unless_present(Path(store.path(staged)), Path(store.path(manifest.digest)))
    finally:
        shutil.rmtree(store.path(staged), ignore_errors=True)


def _write_in_place(store: Store, manifest: Manifest, tensors: bytes) -> None:
    """A manifest that is valid once the tensors are written stays, with its recorded fields."""
    store.write_bytes(f"{manifest.digest}/{TENSOR_FILE}", tensors)
    if not _is_whole(store, manifest):
        store.write_json(f"{manifest.digest}/{MANIFEST_FILE}", asdict(manifest))


def _rename_unless_present(staged: Path, target: Path) -> None:
    try:
        os.rename(staged, target)
    except OSError as error:
        if not (target / MANIFEST_FILE).exists():
            raise StorageError(f"cannot write {target}: {error.strerror}") from error


def record_verification(store: Store, digest: str, protocol: str, **results: Any) -> Manifest:
    """Write results under a protocol into the manifest of LPC `digest`; the digest does not cover them.

    They join what the manifest has of the same protocol, and replace what it has of another.
    Raises: as `stored_manifest`.
    """
    before = stored_manifest(store, digest)
    earlier = before.verification if before.verification.get("protocol") == protocol else {}
    found = json.loads(json.dumps({**earlier, "protocol": protocol, **results}))
    manifest = replace(before, verification=found)
    if manifest != before:
        store.write_json(f"{digest}/{MANIFEST_FILE}", asdict(manifest))
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


def stored_manifest(store: Store, digest: str) -> Manifest:
    """The manifest of LPC `digest` in a store of artifacts.

    Raises: PrefixNotFoundError for a digest the store does not hold, ArtifactError for a manifest that is malformed or of
    another digest, StorageError.
    """
    path = f"{digest}/{MANIFEST_FILE}"
    if not store.exists(path):
        raise PrefixNotFoundError(f"prefix {digest}: not in {store}")
    manifest = parse_manifest(store.read_bytes(path).decode("utf-8", "replace"), where=store.path(path))
    if manifest.digest != digest:
        raise ArtifactError(f"{store.path(path)}: got digest {manifest.digest}, wanted {digest}")
    return manifest


def load_stored(store: Store, digest: str, wanted: ModelIdentity | None = None) -> Loaded:
    """Manifest, keys and values [L, P, H, D] of LPC `digest` as `store` itself holds them, checked as `load_prefix` does.

    wanted None: for the model that the manifest names. Raises: as `stored_manifest` and `load_prefix`.
    """
    manifest, path = stored_manifest(store, digest), f"{digest}/{TENSOR_FILE}"
    check_same(manifest.identity, wanted or manifest.identity, where=f"prefix {digest}")
    if not store.exists(path):
        raise ArtifactError(f"{store.path(path)}: corrupt or missing tensors: no such file")
    return manifest, *_tensors_of(store.read_bytes(path), manifest, store.path(path))


def load_prefix(folder: Path | str, wanted: ModelIdentity) -> Loaded:
    """Manifest, keys and values [L, P, H, D] of the LPC in local `folder`, checked against the model and the digest.

    Raises: PrefixNotFoundError; ArtifactError for another model, a corrupt file, or tensors that do not fit.
    """
    manifest, path = read_manifest(folder), Path(folder) / TENSOR_FILE
    check_same(manifest.identity, wanted, where=str(folder))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: corrupt or missing tensors: {error}") from error
    return manifest, *_tensors_of(data, manifest, str(path))


def _tensors_of(data: bytes, manifest: Manifest, where: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values in a safetensors file. Raises: ArtifactError unless they are those of the manifest."""
    try:
        tensors = load_tensors(data)
        keys, values = tensors["keys"], tensors["values"]
    except (SafetensorError, KeyError) as error:
        raise ArtifactError(f"{where}: corrupt or missing tensors: {error}") from error
    _check_tensors(keys, values, manifest.identity, where)
    got, recorded = (keys.shape[1], str(keys.dtype)), (manifest.num_tokens, f"torch.{manifest.dtype}")
    if got != recorded:
        raise ArtifactError(
            f"{where}: got {got[0]} tokens of {got[1]}, wanted {recorded[0]} of {recorded[1]}, as the manifest states"
        )
    digest = prefix_digest(keys, values, manifest.identity, manifest.frozen_tokens)
    if digest != manifest.digest:
        raise ArtifactError(f"{where}: got digest {digest} from the tensors, wanted {manifest.digest} of the manifest")
    return keys, values


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

    A copy that differs from the store's manifest, or has not its digest, is fetched again.
    Raises: as `stored_manifest`, and ArtifactError for an object store whose tensors are corrupt; no copy is kept then.
    """
    manifest = stored_manifest(store, digest)
    if store.is_local:
        return Path(store.path(digest))
    local = Store(str(cache))
    if not _is_whole(local, manifest):
        local.remove(digest)
        _, keys, values = load_stored(store, digest)
        publish(local, keys, values, manifest.identity, manifest.frozen_tokens, **publish_arguments(manifest))
    elif stored_manifest(local, digest) != manifest:
        local.write_json(f"{digest}/{MANIFEST_FILE}", asdict(manifest))
    return cache / digest


def publish_arguments(manifest: Manifest) -> dict[str, Any]:
    """The manifest's fields beside its tensors and their model, as keyword arguments of `publish`."""
    names = ("kind", "position_rule", "k_max", "provenance", "costs", "verification")
    return {name: getattr(manifest, name) for name in names}
