"""Which models a prefix can enter exactly. What cannot be right is refused by name, before any token is computed."""

import json
from types import SimpleNamespace
from typing import Any

from lpc_ray.errors import ConfigError
from lpc_ray.model.embedded import model_file

_COUNTS = ("max_position_embeddings", "vocab_size", "sliding_window")
_PLAIN_LAYERS = {"full_attention", "sliding_attention"}
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def check_architecture(config: Any) -> None:
    """Raises: ConfigError naming the model type and why, for a text config (`get_text_config()`) with

    - multi-head latent, linear or chunked attention: no keys and values per head and token for a prefix to join;
    - layers that share their keys and values, or layers of different shapes: no prefix of one shape;
    - bidirectional attention;
    - a RoPE whose frequencies change with the length, so that stored keys would belong to another rotation.

    A sliding window too short for prefix and prompt, and learned attention sinks, are refused where they show: in the
    attention function (`prefix`).
    """
    name = f"model {config.model_type}"
    other_layers = set(getattr(config, "layer_types", None) or []) - _PLAIN_LAYERS
    if getattr(config, "kv_lora_rank", None) is not None:
        raise ConfigError(f"{name}: multi-head latent attention keeps no per-head keys and values for a prefix to join")
    if other_layers:
        raise ConfigError(
            f"{name}: {', '.join(sorted(other_layers))} layers hold no keys and values for a prefix to join"
        )
    if getattr(config, "num_kv_shared_layers", 0):
        raise ConfigError(f"{name}: layers that share keys and values cannot carry a prefix each")
    if getattr(config, "is_heterogeneous", False):
        raise ConfigError(f"{name}: layers of different shapes cannot carry a prefix of one shape")
    if getattr(config, "use_bidirectional_attention", None):
        raise ConfigError(f"{name}: bidirectional attention has no place before the prompt for a prefix")
    for rope_type in sorted(_rope_types(getattr(config, "rope_parameters", None))):
        if rope_type in _LENGTH_DEPENDENT_ROPE:
            raise ConfigError(f"{name}: {rope_type} RoPE rotates stored keys by frequencies that depend on the length")


def check_context(config: Any, tokens: int, what: str) -> None:
    """Raises: ConfigError, saying what the `tokens` are, where the model's context or a sliding window holds fewer."""
    name, context = f"model {config.model_type}", getattr(config, "max_position_embeddings", None)
    if context is not None and context < tokens:
        raise ConfigError(f"{name}: got {tokens} tokens of {what}, wanted at most its context of {context}")
    layers, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    slides = "sliding_attention" in layers if layers else getattr(config, "use_sliding_window", True)
    if window and slides and window < tokens:
        raise ConfigError(f"{name}: got {tokens} tokens of {what}, wanted at most its sliding window of {window}")


def stated_config(model: str, revision: str | None = None) -> Any:
    """What the `config.json` of a model says of its text part, read without transformers; defaults are not filled in.

    model: a local folder, or an id on the Hugging Face hub. Raises: ConfigError when it cannot be read.
    """
    file = model_file(model, "config.json", revision)
    try:
        config = json.loads(file.read_text(encoding="utf-8")) if file else {}
        text = config.get("text_config") or config
        fields = {"model_type": "unknown", "rope_parameters": text.get("rope_scaling"), **text}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"model {model!r}: config.json cannot be read: {' '.join(str(error).split())[:300]}"
        ) from error
    for name in _COUNTS:
        if fields.get(name) is None:  # stated as null: not stated
            fields.pop(name, None)
        elif type(fields[name]) is not int or fields[name] < 1:
            raise ConfigError(
                f"model {model!r}: config.json: {name}: got {fields[name]!r}, wanted a whole number above 0"
            )
    layers = fields.get("layer_types") or []
    if not isinstance(layers, list) or not all(isinstance(one, str) for one in layers):
        raise ConfigError(f"model {model!r}: config.json: layer_types: got {str(layers)[:80]}, wanted a list of names")
    return SimpleNamespace(**fields)


def _rope_types(parameters: Any) -> set[str]:
    """The RoPE types of a config: one, or one per layer type."""
    if not isinstance(parameters, dict):
        return set()
    nested = [inner for inner in parameters.values() if isinstance(inner, dict)]
    return {str(inner.get("rope_type") or inner.get("type") or "default") for inner in nested or [parameters]}
