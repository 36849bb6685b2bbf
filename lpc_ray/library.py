"""LPCs under handles: import, export, verify, and compose at evaluation. A library is a store; see `handles`."""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from lpc_ray.artifact import Manifest, fetch, load_prefix, publish, stored_manifest
from lpc_ray.convert import ExportFormat, Foreign, ImportFormat, read_foreign, write_foreign
from lpc_ray.convert.layers import Layout
from lpc_ray.errors import ArtifactError, PrefixNotFoundError
from lpc_ray.handles import ARTIFACTS, check_handle, find_digest, list_handles, parts_of, set_handle
from lpc_ray.identity import ModelIdentity
from lpc_ray.storage import Store


@dataclass(frozen=True)
class ImportRequest:
    """A foreign file, and how to read it. align_down: keep only whole blocks of so many tokens, as older servers did."""

    path: Path
    format: ImportFormat
    handle: str
    layout: Layout | None = None
    align_down: int | None = None


def add(store: Store, request: ImportRequest, identity: ModelIdentity) -> Manifest:
    """Publish the prefix in a foreign file under a handle; nothing is written unless all of it is right.

    Raises: ArtifactError for a file that does not fit the model, ConfigError for a malformed handle, StorageError.
    """
    check_handle(request.handle)
    foreign = read_foreign(request.path, request.format, identity, request.layout)
    told: dict[str, Any] = {
        "imported_from": request.format,
        "file": request.path.name,
        "file_sha256": _file_digest(request.path),
        "file_says": foreign.told,
    }
    if request.align_down is not None:
        foreign, dropped = _aligned(foreign, request.align_down, str(request.path))
        told["aligned_down_to"], told["dropped_tokens"] = request.align_down, dropped
    artifacts = store / ARTIFACTS
    frozen = foreign.frozen_tokens
    manifest = publish(artifacts, foreign.keys, foreign.values, identity, frozen, kind=foreign.kind, provenance=told)
    set_handle(store, request.handle, manifest.digest)
    return manifest


def _aligned(foreign: Foreign, block: int, where: str) -> tuple[Foreign, int]:
    """The prefix cut to whole blocks, and how many tokens were dropped."""
    tokens = foreign.keys.shape[1]
    if block < 1:
        raise ArtifactError(f"{where}: got align down to {block} tokens, wanted a block of 1 or more")
    kept = tokens - tokens % block
    if kept <= foreign.frozen_tokens:
        raise ArtifactError(f"{where}: got {tokens} tokens, wanted at least one block of {block} to align down to")
    return replace(foreign, keys=foreign.keys[:, :kept], values=foreign.values[:, :kept]), tokens - kept


def _file_digest(path: Path) -> str:
    """SHA-256 over the file, or over the files directly in the folder, by name."""
    hasher = sha256()
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            hasher.update(file.name.encode())
            hasher.update(file.read_bytes())
    return hasher.hexdigest()


def load(store: Store, expression: str, identity: ModelIdentity | None, cache: Path) -> tuple[Manifest, Any, Any]:
    """Manifest, keys and values [L, P, H, D] of a handle, digest or composition, checked against its digest and the model.

    identity None: the LPC's own, which checks everything but the model.
    Raises: PrefixNotFoundError, ArtifactError.
    """
    digest = resolve(store, expression, cache)
    wanted = identity or stored_manifest(store / ARTIFACTS, digest).identity
    return load_prefix(fetch(store / ARTIFACTS, digest, cache), wanted)


def export(store: Store, expression: str, format: ExportFormat, out: Path, cache: Path) -> list[str]:
    """Write the LPC in a foreign format into the new folder `out`; returns the names of the files."""
    return write_foreign(out, format, *load(store, expression, None, cache))


def resolve(store: Store, expression: str, cache: Path) -> str:
    """The digest that a handle, a digest or a composition `a+b` stands for; a composition is made and published."""
    digests = [find_digest(store, part) for part in parts_of(expression)]
    return digests[0] if len(digests) == 1 else compose(store, digests, cache).digest


def adopt(store: Store, expression: str, into: Store, identity: ModelIdentity, cache: Path) -> Manifest:
    """Copy what `expression` stands for in one store into another, whole, after checking it against the model."""
    manifest, keys, values = load(store, expression, identity, cache)
    told = {name: getattr(manifest, name) for name in ("kind", "k_max", "provenance", "costs", "verification")}
    return publish(into / ARTIFACTS, keys, values, manifest.identity, manifest.frozen_tokens, **told)


def compose(store: Store, digests: list[str], cache: Path, drop_later_sinks: bool = False) -> Manifest:
    """One LPC of several, their keys and values concatenated in order, each with its own phases from 0.

    drop_later_sinks: leave out the frozen positions of all but the first (arXiv 2608.30647).
    Prefixes that were not trained beside others interfere; `k_max` is the least of theirs.
    Raises: ArtifactError for prefixes of different models, or more tokens than the context holds.
    """
    artifacts = store / ARTIFACTS
    identity = stored_manifest(artifacts, digests[0]).identity
    loaded = [load_prefix(fetch(artifacts, digest, cache), identity) for digest in digests]
    dtypes = {manifest.dtype for manifest, _, _ in loaded}
    if len(dtypes) > 1:
        raise ArtifactError(f"composition of {', '.join(digests)}: got dtypes {', '.join(sorted(dtypes))}, wanted one")
    skipped = [0, *(manifest.frozen_tokens if drop_later_sinks else 0 for manifest, _, _ in loaded[1:])]
    keys = torch.cat([keys[:, skip:] for skip, (_, keys, _) in zip(skipped, loaded, strict=True)], dim=1)
    values = torch.cat([values[:, skip:] for skip, (_, _, values) in zip(skipped, loaded, strict=True)], dim=1)
    if keys.shape[1] >= identity.max_positions:
        raise ArtifactError(
            f"composition of {', '.join(digests)}: got {keys.shape[1]} tokens, wanted fewer than the context of "
            f"{identity.max_positions}"
        )
    first = loaded[0][0]
    return publish(
        artifacts,
        keys,
        values,
        identity,
        first.frozen_tokens,
        kind=first.kind,
        k_max=min(manifest.k_max for manifest, _, _ in loaded),
        provenance={"composed_of": digests, "dropped_sinks": sum(skipped)},
    )


def entries(store: Store) -> list[tuple[str, str, Manifest | ArtifactError | PrefixNotFoundError]]:
    """(handle, digest, manifest) of every handle, then of the artifacts without one under the handle "".

    Where an artifact is missing or its manifest malformed, the error stands in the manifest's place.
    """
    handles = list_handles(store)
    unnamed = sorted(set((store / ARTIFACTS).names()) - set(handles.values()))
    named = [*handles.items(), *(("", digest) for digest in unnamed)]
    return [(handle, digest, _manifest_or_error(store / ARTIFACTS, digest)) for handle, digest in named]


def _manifest_or_error(artifacts: Store, digest: str) -> Manifest | ArtifactError | PrefixNotFoundError:
    try:
        return stored_manifest(artifacts, digest)
    except (ArtifactError, PrefixNotFoundError) as error:
        return error
