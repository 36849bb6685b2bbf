"""The fields of a model's config that change what its forward pass computes, as plain values to be compared.

A config says the same in many ways: a field left out or given its default, a list that follows from another field, notes
that no model reads, names of an older transformers. What counts is the shortest config of the model's type that the
installed transformers builds the same model from; a field that a later transformers adds, with a default, is not in it.
"""

import copy
import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

_NOT_FORWARD = {
    "use_cache",
    "initializer_range",
    "pretraining_tp",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "max_position_embeddings",  # how far it reads; where it enters RoPE, `rope_of` has it
    "rope_parameters",
}
_TRAINING_ONLY = ("dropout", "_pdrop")


def forward_fields(config: Any) -> dict[str, Any]:
    """The shortest description of a text config (`get_text_config()`) without RoPE, as JSON values.

    Fields that its class does not declare are notes; `model_type` and a `quantization_config` count as well.
    """
    from transformers import PreTrainedConfig

    kind = type(config)
    values = {name: vars(config).get(name) for name in sorted(_declared(kind) - _declared(PreTrainedConfig))}
    aside = {name: value for name, value in values.items() if name in _NOT_FORWARD or name.endswith(_TRAINING_ONLY)}
    kept = {name: value for name, value in values.items() if name not in aside}
    whole = _each_plain(kept)
    for name in whole:
        fewer = {other: value for other, value in kept.items() if other != name}
        if _says(kind, {**aside, **fewer}, whole):
            kept = fewer
    quantised = getattr(config, "quantization_config", None)
    quantised = quantised if quantised is None or isinstance(quantised, dict) else quantised.to_dict()
    return {"model_type": config.model_type, "fields": _each_plain(kept), "quantization_config": plain(quantised)}


def rope_of(config: Any) -> str:
    """A config's RoPE as canonical JSON: what has its neutral value is left out.

    A stretched one whose original context is not stated reads it from the model's context, which then stands in it.
    """
    rope = plain(getattr(config, "rope_parameters", None)) or {}
    per_layer_type = bool(rope) and all(isinstance(inner, dict) for inner in rope.values())
    context = config.max_position_embeddings
    found = (
        {name: _one_rope(inner, context) for name, inner in rope.items()}
        if per_layer_type
        else _one_rope(rope, context)
    )
    return json.dumps(found, sort_keys=True)


def _one_rope(rope: dict[str, Any], context: int) -> dict[str, Any]:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    found = {name: value for name, value in rope.items() if name not in ("type", "rope_type")}
    if found.get("partial_rotary_factor") == 1:
        del found["partial_rotary_factor"]
    if kind in ("default", "linear"):
        found.pop("original_max_position_embeddings", None)
    else:
        found.setdefault("original_max_position_embeddings", context)
    return {"rope_type": kind, **found}


def plain(value: Any) -> Any:
    """JSON values in one spelling: no nulls in objects, whole numbers as integers, anything else as its text."""
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in sorted(value.items(), key=str) if inner is not None}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and math.isfinite(value):
        return int(value) if value.is_integer() else value
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _each_plain(fields: dict[str, Any]) -> dict[str, Any]:
    """A null stands here where it is stated: it may switch off what the class has by default."""
    return {name: plain(value) for name, value in fields.items()}


def _says(kind: Any, arguments: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Whether a config of these fields alone has the values of `whole`."""
    try:
        built = kind(**copy.deepcopy(arguments))
    except Exception:  # a config class refuses too few fields in whatever way it knows; the field then counts
        return False
    return _each_plain({name: vars(built).get(name) for name in whole}) == whole


def _declared(kind: Any) -> set[str]:
    return {field.name for field in fields(kind)} if is_dataclass(kind) else set()
