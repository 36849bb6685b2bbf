"""The artifact store as the host tier sees it: copies an LPC into a folder, checked against model and digest."""

from pathlib import Path

from lpc_ray.artifact import MANIFEST_FILE, TENSOR_FILE, Manifest, load_prefix, parse_manifest
from lpc_ray.errors import ArtifactError, PrefixNotFoundError
from lpc_ray.identity import ModelIdentity, check_same
from lpc_ray.serving.sizing import check_kind
from lpc_ray.storage import Store


class ArtifactSource:
    """Prefixes of one model. Blocking; for use in threads."""

    def __init__(self, store: Store, identity: ModelIdentity):
        self._store, self._identity = store, identity

    def manifest(self, digest: str) -> Manifest:
        """Raises: PrefixNotFoundError; ArtifactError for a manifest of another model, another kind or another digest."""
        if len(digest) != 32 or set(digest) - set("0123456789abcdef"):
            raise ArtifactError(f"got digest {digest[:80]!r}, wanted 32 hexadecimal digits")
        path = f"{digest}/{MANIFEST_FILE}"
        if not self._store.exists(path):
            raise PrefixNotFoundError(f"prefix {digest}: not in {self._store}")
        try:
            text = self._store.read_bytes(path).decode()
        except UnicodeDecodeError as error:
            raise ArtifactError(f"{path}: not an LPC manifest: {error}") from error
        manifest = parse_manifest(text, where=path)
        if manifest.digest != digest:
            raise ArtifactError(f"{path}: got digest {manifest.digest}, wanted {digest}")
        check_kind(manifest.kind)
        check_same(manifest.identity, self._identity, where=f"prefix {digest}")
        return manifest

    def num_bytes(self, digest: str) -> int:
        return self.manifest(digest).num_bytes

    def load(self, digest: str, folder: Path) -> None:
        for name in (TENSOR_FILE, MANIFEST_FILE):
            (folder / name).write_bytes(self._store.read_bytes(f"{digest}/{name}"))
        load_prefix(folder, self._identity)
