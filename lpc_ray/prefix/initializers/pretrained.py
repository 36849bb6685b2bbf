from pathlib import Path

from lpc_ray.artifacts.store import load_prefix
from lpc_ray.errors import ArtifactError
from lpc_ray.model.identity import ModelIdentity
from lpc_ray.prefix.initializers.base import Initialized


def pretrained(folder: Path, identity: ModelIdentity, num_tokens: int) -> Initialized:
    """The keys and values of an earlier LPC, in local `folder`, of the same model. METHODS section 6.

    Raises: ArtifactError for an LPC of another model (the field is named), a corrupt one, or one that is not P tokens long;
    PrefixNotFoundError.
    """
    manifest, keys, values = load_prefix(folder, identity)
    if manifest.num_tokens != num_tokens:
        raise ArtifactError(
            f"pretrained: got prefix {manifest.digest} of {manifest.num_tokens} tokens, wanted exactly P = {num_tokens}"
        )
    return Initialized(keys.float(), values.float(), {"initializer": "pretrained", "pretrained_from": manifest.digest})
