"""An LPC from any store into a local folder, checked on the way: checking overlaps with copying."""

import itertools
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import torch
from blake3 import blake3

from lpc_ray.artifacts.handles import MANIFEST_FILE
from lpc_ray.artifacts.manifest import Manifest
from lpc_ray.artifacts.store import TENSOR_FILE, digest_of_hash, stored_manifest
from lpc_ray.errors import ArtifactError, StorageError
from lpc_ray.model.identity import ModelIdentity, check_same
from lpc_ray.storage import Store

CHUNK_BYTES = 512 << 10
_MAX_HEADER_BYTES = 1 << 20
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def fetch_manifest(store: Store, digest: str, wanted: ModelIdentity) -> Manifest:
    """The manifest of LPC `digest`, which is for the model `wanted`.

    Raises: PrefixNotFoundError, StorageError; ArtifactError for no digest, another model's manifest or another digest's.
    """
    if len(digest) != 32 or set(digest) - set("0123456789abcdef"):
        raise ArtifactError(f"got digest {digest[:80]!r}, wanted 32 hexadecimal digits")
    manifest = stored_manifest(store, digest)
    check_same(manifest.identity, wanted, where=f"prefix {digest}")
    return manifest


def fetch_checked(store: Store, digest: str, folder: Path, wanted: ModelIdentity) -> Manifest:
    """Copy LPC `digest` into `folder`, which is empty or holds a spare file under the tensors' name, to be overwritten.

    Raises: as `fetch_manifest`, and ArtifactError for tensors that do not fit; `folder` may then hold a part.
    """
    manifest = fetch_manifest(store, digest, wanted)
    path = f"{digest}/{TENSOR_FILE}"
    try:
        with (
            store.filesystem.open(store.path(path), "rb") as source,
            open(os.open(folder / TENSOR_FILE, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as sink,
        ):
            tensor_hash = _copy(source, sink, manifest, where=path)
            sink.truncate()
    except OSError as error:
        raise StorageError(f"cannot copy {store.path(path)} to {folder}: {error.strerror or error}") from error
    shape = [
        manifest.identity.num_layers,
        manifest.num_tokens,
        manifest.identity.num_kv_heads,
        manifest.identity.head_dim,
    ]
    dtype = getattr(torch, manifest.dtype)
    found = digest_of_hash(tensor_hash, shape, dtype, manifest.identity, manifest.frozen_tokens)
    if found != digest:
        raise ArtifactError(f"{path}: got digest {found} from the tensors, wanted {digest} of the manifest")
    (folder / MANIFEST_FILE).write_bytes(store.read_bytes(f"{digest}/{MANIFEST_FILE}"))
    return manifest


def _copy(source: Any, sink: IO[bytes], manifest: Manifest, where: str) -> str:
    """Copies a safetensors file; returns the BLAKE3 hash of its tensors' bytes. Checking overlaps with copying."""
    head = source.read(8)
    length = int.from_bytes(head, "little")
    header = source.read(length) if 0 < length <= _MAX_HEADER_BYTES else b""
    _check_header(header, manifest, where)
    sink.write(head + header)
    hasher, dtype, copied = blake3(), getattr(torch, manifest.dtype), 0

    def take_in(chunk: memoryview) -> None:
        hasher.update(chunk)
        _check_finite(chunk, dtype, where)

    # Few small buffers: memory that a process touches for the first time costs more than copying into it.
    buffers = [memoryview(bytearray(CHUNK_BYTES)) for _ in range(4)]
    pending: list[Future[None] | None] = [None] * len(buffers)
    with ThreadPoolExecutor(1) as checking:
        for slot in itertools.cycle(range(len(buffers))):
            _wait(pending[slot])
            size = _fill(buffers[slot], source)
            copied += size
            if not size or copied > manifest.num_bytes:
                break
            chunk = buffers[slot][:size]
            pending[slot] = checking.submit(take_in, chunk)
            sink.write(chunk)
        for future in pending:
            _wait(future)
    if copied != manifest.num_bytes:
        raise ArtifactError(f"{where}: corrupt: got {copied} bytes or more of tensors, wanted {manifest.num_bytes}")
    return hasher.hexdigest()


def _fill(buffer: memoryview, source: Any) -> int:
    """Read until the buffer is full or the file ends, so that no number is cut in two; returns the bytes read."""
    size = 0
    while size < len(buffer) and (got := source.readinto(buffer[size:])):
        size += got
    return size


def _wait(future: Future[None] | None) -> None:
    if future is not None:
        future.result()


def _check_finite(chunk: memoryview, dtype: torch.dtype, where: str) -> None:
    if len(chunk) % dtype.itemsize:
        return  # the last bytes of a file that is too short; the check of its length refuses it
    values = torch.frombuffer(chunk, dtype=dtype)
    # A sum is much faster than looking at each, and finite only when all are; where it overflows, each is looked at.
    if not values.sum().isfinite() and not values.isfinite().all():
        raise ArtifactError(f"{where}: got keys or values that are not finite")


def _check_header(header: bytes, manifest: Manifest, where: str) -> None:
    """Raises: ArtifactError unless the file holds exactly the manifest's keys and then its values."""
    who = manifest.identity
    shape, half = [who.num_layers, manifest.num_tokens, who.num_kv_heads, who.head_dim], manifest.num_bytes // 2
    wanted = {
        name: {"dtype": _DTYPES.get(manifest.dtype), "shape": shape, "data_offsets": [start, start + half]}
        for name, start in (("keys", 0), ("values", half))
    }
    try:
        got = json.loads(header)
        got.pop("__metadata__", None)
    except (ValueError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{where}: corrupt: not a safetensors file") from error
    if got != wanted:
        raise ArtifactError(f"{where}: got tensors {str(got)[:300]}, wanted {wanted}")
