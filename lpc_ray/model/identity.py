"""What a prefix was made for: model, tokenizer, chat template and RoPE, as comparable fields.

A prefix used with any other of these gives wrong tokens without any error, so every load compares them.
"""

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from lpc_ray.errors import ArtifactError, ConfigError
from lpc_ray.model.embedded import EMBEDDED_MODEL, model_cache
from lpc_ray.model.files import read_tokenizer, text_config
from lpc_ray.records import digest_of

Count = Annotated[int, Field(gt=0, lt=2**31)]
_HASHED_WEIGHTS_BYTES = 2 << 30
_NOT_IDENTITY = {
    "_name_or_path",
    "_model_name_or_path",
    "_attn_implementation",
    "attn_implementation",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "pad_token_id",
    "gradient_checkpointing",
}


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Hashes are hexadecimal. `weights_hash` is None where the weights are too large to hash cheaply (over 2 GiB).

    `model_id` and `revision` are how the user named the model; they inform and are not compared.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    model_id: str
    revision: str | None
    config_hash: str
    weights_hash: str | None
    tokenizer_hash: str
    chat_template_hash: str
    rope: str
    num_layers: Count
    num_kv_heads: Count
    head_dim: Count
    max_positions: Count

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_same(got: ModelIdentity, wanted: ModelIdentity, where: str) -> None:
    """Raises: ArtifactError naming the first field that differs, what the artifact has and what the model has."""
    for field in ModelIdentity.__slots__:
        have, want = getattr(got, field), getattr(wanted, field)
        informative = field in ("model_id", "revision")
        unknown_weights = field == "weights_hash" and None in (have, want)
        if have != want and not informative and not unknown_weights:
            raise ArtifactError(
                f"{where}: made for another model: {field} is {have} in the artifact, wanted {want} "
                f"(artifact: {got.model_id}, engine: {wanted.model_id})"
            )


@lru_cache(maxsize=8)
def model_identity(model: str, revision: str | None = None) -> ModelIdentity:
    """The identity of a model on disk or, by id, in the Hugging Face cache.

    Raises: ConfigError when the config or tokenizer cannot be read, or is not that of a model with keys and values per head.
    """
    config, tokenizer = text_config(model, revision), read_tokenizer(model, revision)
    try:
        return _identity(model, revision, config, tokenizer)
    except AttributeError as error:
        raise ConfigError(
            f"model {model!r}: got a {config.model_type} config and a {type(tokenizer).__name__} without {error.name}, which "
            "a prefix's identity needs"
        ) from error


def _identity(model: str, revision: str | None, config: Any, tokenizer: Any) -> ModelIdentity:
    fields = {key: value for key, value in config.to_dict().items() if key not in _NOT_IDENTITY}
    heads = config.num_attention_heads
    return ModelIdentity(
        model_id=EMBEDDED_MODEL if Path(model) == model_cache() / EMBEDDED_MODEL else model,
        revision=revision,
        config_hash=digest_of(json.loads(json.dumps(fields, default=str))),
        weights_hash=_weights_hash(Path(model)) if Path(model).is_dir() else None,
        tokenizer_hash=sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:32],
        chat_template_hash=sha256(str(tokenizer.chat_template or "").encode()).hexdigest()[:32],
        rope=json.dumps(getattr(config, "rope_parameters", None), sort_keys=True, default=str),
        num_layers=config.num_hidden_layers,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        max_positions=config.max_position_embeddings,
    )


def _weights_hash(folder: Path) -> str | None:
    import xxhash

    files = sorted(folder.glob("*.safetensors"))
    if not files or sum(file.stat().st_size for file in files) > _HASHED_WEIGHTS_BYTES:
        return None
    hasher = xxhash.xxh3_128()
    for file in files:
        with open(file, "rb") as source:
            while block := source.read(1 << 24):
                hasher.update(block)
    return hasher.hexdigest()
