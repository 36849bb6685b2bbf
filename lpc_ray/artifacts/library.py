"""LPCs under handles: import, export, verify, and compose at evaluation. A library is a store; see `handles`."""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from lpc_ray.artifacts.formats import ExportFormat, Foreign, ImportFormat, read_foreign, write_foreign
from lpc_ray.artifacts.formats.layers import Layout
from lpc_ray.artifacts.handles import (
    ARTIFACTS,
    check_new_handle,
    find_digest,
    handle_names,
    parts_of,
    read_handle,
    set_handle,
)
from lpc_ray.artifacts.manifest import Manifest
from lpc_ray.artifacts.store import (
    Loaded,
    describe,
    fetch,
    load_prefix,
    load_stored,
    publish,
    publish_arguments,
    stored_manifest,
)
from lpc_ray.errors import ArtifactError, LPCError, PrefixNotFoundError, StorageError
from lpc_ray.model.architecture import check_architecture, check_context
from lpc_ray.model.identity import ModelIdentity, check_same
from lpc_ray.storage import Store


@dataclass(frozen=True)
class ImportRequest:
    """A foreign file, and how to read it. align_down: keep only whole blocks of so many tokens, as older servers did."""

    path: Path
    format: ImportFormat
    handle: str
    layout: Layout | None = None
    align_down: int | None = None


@dataclass(frozen=True)
class Added:
    """What an import has published. previous: the other digest that the handle pointed to before; warnings: a line each."""

    manifest: Manifest
    previous: str | None
    warnings: list[str]


def add(store: Store, request: ImportRequest, identity: ModelIdentity, config: Any) -> Added:
    """Publish the prefix in a foreign file under a handle; nothing is written unless all of it is right.

    config: of the text part of the model that `identity` names.
    Raises: ArtifactError for a file that does not fit the model, ConfigError for a handle that may not be set or a model that
    has no room for the prefix, StorageError.
    """
    check_new_handle(request.handle)
    foreign = read_foreign(request.path, request.format, identity, request.layout)
    warnings = []
    provenance: dict[str, Any] = {
        "imported_from": request.format,
        "file": request.path.name,
        "file_sha256": _file_digest(request.path),
        "file_says": foreign.metadata,
    }
    if foreign.made_for and not _may_be_one(foreign.made_for, identity.model_id):
        warnings.append(f"{request.path} says it was made for {foreign.made_for}, not for {identity.model_id}")
    if request.align_down is not None:
        foreign, dropped = _aligned(foreign, request.align_down, str(request.path))
        provenance["aligned_down_to"], provenance["dropped_tokens"] = request.align_down, dropped
        if dropped:
            warnings.append(f"{dropped} trained tokens dropped to align down to {request.align_down}")
    check_room(config, foreign.keys.shape[1])
    artifacts = store / ARTIFACTS
    frozen = foreign.frozen_tokens
    manifest = publish(
        artifacts, foreign.keys, foreign.values, identity, frozen, kind=foreign.kind, provenance=provenance
    )
    previous = _pointed_to(store, request.handle)
    set_handle(store, request.handle, manifest.digest)
    return Added(manifest, previous if previous != manifest.digest else None, warnings)


def check_room(config: Any, num_tokens: int) -> None:
    """Raises: ConfigError for a model that no prefix enters, or that has no room for one of `num_tokens` and a prompt."""
    check_architecture(config)
    check_context(config, num_tokens + 1, f"prefix ({num_tokens}) and prompt (1 or more)")


def _may_be_one(model: str, other: str) -> bool:
    """A hub's id and a folder of one model agree in their last part at most."""
    return Path(model).name.lower() == Path(other).name.lower()


def _pointed_to(store: Store, handle: str) -> str | None:
    try:
        return read_handle(store, handle)
    except (PrefixNotFoundError, StorageError):
        return None


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


def load(store: Store, expression: str, identity: ModelIdentity | None = None, cache: Path | None = None) -> Loaded:
    """Manifest, keys and values [L, P, H, D] of a handle, digest or composition, checked against its digest and the model.

    identity None: the LPC's own, which checks everything but the model. cache: where copies of what lies in an object store
    are kept; None reads the store itself. Nothing is written into the store.
    Raises: PrefixNotFoundError, ArtifactError.
    """
    digests, artifacts = resolve(store, expression), store / ARTIFACTS
    wanted = identity or stored_manifest(artifacts, digests[0]).identity

    def read(digest: str) -> Loaded:
        if cache is None:
            return load_stored(artifacts, digest, wanted)
        return load_prefix(fetch(artifacts, digest, cache), wanted)

    parts = [read(digest) for digest in digests]
    return parts[0] if len(parts) == 1 else compose(parts)


def export(store: Store, expression: str, format: ExportFormat, out: Path) -> list[str]:
    """Write the LPC in a foreign format into the new folder `out`; returns the names of the files."""
    return write_foreign(out, format, *load(store, expression))


def resolve(store: Store, expression: str) -> list[str]:
    """The digests that a handle, a digest or a composition `a+b` stands for, in order."""
    return [find_digest(store, part) for part in parts_of(expression)]


def made_for(store: Store, expression: str) -> ModelIdentity:
    """The model that what `expression` stands for was made for, as it names it."""
    return stored_manifest(store / ARTIFACTS, resolve(store, expression)[0]).identity


def adopt(store: Store, expression: str, into: Store, identity: ModelIdentity, cache: Path) -> Manifest:
    """Copy what `expression` stands for in one store into another, whole, after checking it against the model."""
    manifest, keys, values = load(store, expression, identity, cache)
    return publish(
        into / ARTIFACTS, keys, values, manifest.identity, manifest.frozen_tokens, **publish_arguments(manifest)
    )


def compose(parts: list[Loaded], drop_later_sinks: bool = False) -> Loaded:
    """One LPC of several, their keys and values concatenated in order, each with its own phases from 0.

    drop_later_sinks: leave out the frozen positions of all but the first (arXiv 2608.30647).
    Prefixes that were not trained beside others interfere; `k_max` is the least of theirs.
    Raises: ArtifactError for prefixes of different models, or more tokens than the context holds.
    """
    first = parts[0][0]
    identity, digests = first.identity, [manifest.digest for manifest, _, _ in parts]
    where = f"composition of {', '.join(digests)}"
    for manifest, _, _ in parts:
        check_same(manifest.identity, identity, where)
    dtypes = {manifest.dtype for manifest, _, _ in parts}
    if len(dtypes) > 1:
        raise ArtifactError(f"{where}: got dtypes {', '.join(sorted(dtypes))}, wanted one")
    skipped = [0, *(manifest.frozen_tokens if drop_later_sinks else 0 for manifest, _, _ in parts[1:])]
    keys = torch.cat([keys[:, skip:] for skip, (_, keys, _) in zip(skipped, parts, strict=True)], dim=1)
    values = torch.cat([values[:, skip:] for skip, (_, _, values) in zip(skipped, parts, strict=True)], dim=1)
    if keys.shape[1] >= identity.max_positions:
        raise ArtifactError(
            f"{where}: got {keys.shape[1]} tokens, wanted fewer than the context of {identity.max_positions}"
        )
    manifest = describe(
        keys,
        values,
        identity,
        first.frozen_tokens,
        kind=first.kind,
        k_max=min(manifest.k_max for manifest, _, _ in parts),
        provenance={"composed_of": digests, "dropped_sinks": sum(skipped)},
    )
    return manifest, keys, values


def entries(store: Store) -> list[tuple[str, str, Manifest | LPCError]]:
    """(handle, digest, manifest) of every handle, then of the artifacts without one under the handle "".

    Where a handle or manifest is malformed, or an artifact missing, the error stands in the manifest's place; the digest of a
    malformed handle is "".
    """
    named = [_entry(store, handle) for handle in handle_names(store)]
    unnamed = sorted(set((store / ARTIFACTS).names()) - {digest for _, digest, _ in named})
    return [*named, *(("", digest, _manifest_or_error(store, digest)) for digest in unnamed)]


def _entry(store: Store, handle: str) -> tuple[str, str, Manifest | LPCError]:
    try:
        digest = read_handle(store, handle)
    except LPCError as error:
        return handle, "", error
    return handle, digest, _manifest_or_error(store, digest)


def _manifest_or_error(store: Store, digest: str) -> Manifest | LPCError:
    try:
        return stored_manifest(store / ARTIFACTS, digest)
    except LPCError as error:
        return error
