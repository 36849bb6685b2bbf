"""The artifact store as the host tier sees it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lpc_ray.artifacts.fetch import fetch_checked, fetch_manifest
from lpc_ray.artifacts.manifest import Manifest
from lpc_ray.artifacts.store import TENSOR_FILE
from lpc_ray.model.identity import ModelIdentity
from lpc_ray.serving.spare import make_spare, take_spare
from lpc_ray.storage import Store
from lpc_ray.verification.gate import require_passed


class ArtifactSource:
    """Prefixes of one model. Blocking; for use in threads."""

    def __init__(self, store: Store, identity: ModelIdentity, require_gate: bool):
        self._store, self._identity, self._require_gate = store, identity, require_gate
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="spare")

    def manifest(self, digest: str) -> Manifest:
        """Raises: as `fetch_manifest`, and ArtifactError where the gate is required and was not passed."""
        manifest = fetch_manifest(self._store, digest, self._identity)
        if self._require_gate:
            require_passed(manifest, "require_gate")
        return manifest

    def num_bytes(self, digest: str) -> int:
        return self.manifest(digest).num_bytes

    def load(self, digest: str, folder: Path) -> None:
        """`folder` lies in the host tier's folder. Raises: as `fetch_checked`."""
        take_spare(folder.parent, folder / TENSOR_FILE)
        manifest = fetch_checked(self._store, digest, folder, self._identity)
        self._aside.submit(make_spare, folder.parent, manifest.num_bytes)
