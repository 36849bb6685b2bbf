"""Which models a prefix can enter exactly. What cannot be right is refused by name, before any token is computed."""

from typing import Any

from lpc_ray.errors import ConfigError

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


def _rope_types(parameters: Any) -> set[str]:
    """The RoPE types of a config: one, or one per layer type."""
    if not isinstance(parameters, dict):
        return set()
    nested = [inner for inner in parameters.values() if isinstance(inner, dict)]
    return {str(inner.get("rope_type", "default")) for inner in nested or [parameters]}
