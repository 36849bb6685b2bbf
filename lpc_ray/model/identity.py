"""What a prefix was made for: model, tokenizer, chat template and RoPE, as comparable fields.

A prefix used with any other of these gives wrong tokens without any error, so every load compares them.
"""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from lpc_ray.errors import ArtifactError, ConfigError
from lpc_ray.model.embedded import EMBEDDED_MODEL, model_cache
from lpc_ray.model.files import read_tokenizer, text_config
from lpc_ray.model.forward_fields import forward_fields, rope_of
from lpc_ray.model.text_fields import template_of, tokenizer_fields
from lpc_ray.model.weights import weights_hash
from lpc_ray.records import digest_of

Count = Annotated[int, Field(gt=0, lt=2**31)]
_INFORMATIVE = ("model_id", "revision", "max_positions")


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Hashes are hexadecimal: of the config fields that change the forward pass, of all tensors, of how text becomes
    tokens, of the chat template. `rope`: JSON.

    `model_id` and `revision` are how the user named the model, `max_positions` is how far it says it reads; they inform
    and are not compared.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    model_id: str
    revision: str | None
    config_hash: str
    weights_hash: str
    tokenizer_hash: str
    chat_template_hash: str
    rope: str
    num_layers: Count
    num_kv_heads: Count
    head_dim: Count
    max_positions: Count

    def compared(self) -> dict[str, Any]:
        """The fields in which two models must agree for a prefix of one to be right for the other."""
        return {name: value for name, value in asdict(self).items() if name not in _INFORMATIVE}


def check_same(got: ModelIdentity, wanted: ModelIdentity, where: str, weights: bool = True) -> None:
    """Raises: ArtifactError naming the first field that differs, what the artifact has and what the model has.

    weights: whether theirs are compared too.
    """
    have, want = got.compared(), wanted.compared()
    for field in have:
        if (weights or field != "weights_hash") and have[field] != want[field]:
            raise ArtifactError(
                f"{where}: made for another model: {field} is {have[field]} in the artifact, wanted {want[field]} "
                f"(artifact: {got.model_id}, engine: {wanted.model_id})"
            )


@lru_cache(maxsize=8)
def model_identity(model: str, revision: str | None = None) -> ModelIdentity:
    """The identity of a model on disk or, by id, in the Hugging Face cache, where its weights are fetched.

    Raises: ConfigError when config, tokenizer or weights cannot be read, or are not those of a model with keys and values
    per head.
    """
    stated = stated_identity(model, revision)
    return replace(stated, weights_hash=weights_hash(model, revision, _tied_shape(text_config(model, revision))))


@lru_cache(maxsize=8)
def stated_identity(model: str, revision: str | None = None) -> ModelIdentity:
    """`model_identity` but for its `weights_hash`, which is empty: no weights are read or fetched."""
    config, tokenizer = text_config(model, revision), read_tokenizer(model, revision)
    try:
        return _identity(model, revision, config, tokenizer)
    except AttributeError as error:
        raise ConfigError(
            f"model {model!r}: got a {config.model_type} config and a {type(tokenizer).__name__} without {error.name}, which "
            "a prefix's identity needs"
        ) from error


def _tied_shape(config: Any) -> tuple[int, int] | None:
    return (config.vocab_size, config.hidden_size) if getattr(config, "tie_word_embeddings", False) else None


def _identity(model: str, revision: str | None, config: Any, tokenizer: Any) -> ModelIdentity:
    heads = config.num_attention_heads
    return ModelIdentity(
        model_id=EMBEDDED_MODEL if Path(model) == model_cache() / EMBEDDED_MODEL else model,
        revision=revision,
        config_hash=digest_of(forward_fields(config)),
        weights_hash="",
        tokenizer_hash=digest_of(tokenizer_fields(tokenizer.backend_tokenizer.to_str())),
        chat_template_hash=digest_of(template_of(tokenizer.chat_template)),
        rope=rope_of(config),
        num_layers=config.num_hidden_layers,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        max_positions=config.max_position_embeddings,
    )
