"""KNLP skills (`cartridge.pt` of (key, value) pairs, `meta.json`, `prefix_token_ids.json`) and vLLM connector payloads.

A payload is a torch file: a list of per-layer pairs, or a dict, perhaps under `cache`, with one of the names in PAIRS or
NAMED. `resource_kind` gives the kind. Source: the KNLP tools and the learned-prefix branch of its connector.
"""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from lpc_ray.artifacts.formats import cartridges
from lpc_ray.artifacts.formats.layers import Foreign, Layout, check_stated_tokens, stack
from lpc_ray.artifacts.formats.untrusted import load_tensors_only, read_fields, read_json, shown
from lpc_ray.artifacts.manifest import Kind
from lpc_ray.errors import ArtifactError
from lpc_ray.model.identity import ModelIdentity

FILE = "cartridge.pt"
PAIRS = ("kv_data", "past_key_values")
NAMED = (
    ("reasoncache_keys", "reasoncache_values"),
    ("prefix_keys", "prefix_values"),
    ("key_cache", "value_cache"),
    ("keys", "values"),
)
_KIND_OF: dict[str, Kind] = {"reasoncache_keys": "reasoncache", "prefix_keys": "kv_prefix"}


def read(path: Path, identity: ModelIdentity, layout: Layout | None = None) -> Foreign:
    """The prefix in a skill's folder or in a payload file. `kv_data` is tokens first, as the connector writes it.

    Raises: ArtifactError for an unknown payload, or where `meta.json` or the token ids contradict the tensors.
    """
    file = path / FILE if path.is_dir() else path
    payload = load_tensors_only(file)
    where, stated = str(file), payload
    if isinstance(payload, dict) and isinstance(payload.get("cache"), dict):
        payload = {"resource_kind": payload.get("resource_kind"), **payload["cache"]}
    if isinstance(payload, list):
        found = _from_pairs(payload, identity, layout, where, kind="skill")
    elif isinstance(payload, dict):
        found = _from_dict(payload, identity, layout, where)
    else:
        raise ArtifactError(
            f"{where}: got {cartridges.describe(payload)}, wanted (key, value) pairs or a connector payload"
        )
    meta_file = file.parent / "meta.json"
    meta = read_fields(meta_file) if os.path.lexists(meta_file) else {}
    for said, place in ((stated, where), (payload, where), (meta, str(meta_file))):
        if isinstance(said, dict):
            check_stated_tokens(said, found.keys.shape[1], found.frozen_tokens or None, place)
    _check_meta(meta, file.parent, found, where)
    return replace(found, metadata={**found.metadata, **_plain_of(meta)}, made_for=_model_of(meta))


def _from_dict(payload: dict[str, Any], identity: ModelIdentity, layout: Layout | None, where: str) -> Foreign:
    kind = payload.get("resource_kind")
    if kind is not None and kind not in get_args(Kind):
        raise ArtifactError(f"{where}: got resource_kind {shown(kind)}, wanted one of {', '.join(get_args(Kind))}")
    if "trainable_keys" in payload:
        found = cartridges.from_payload(payload, identity, where)
        return Foreign(found.keys, found.values, found.frozen_tokens, kind or found.kind)
    names = [name for name in PAIRS if name in payload] + [pair[0] for pair in NAMED if pair[0] in payload]
    if len(names) != 1:
        known = [*PAIRS, *(pair[0] for pair in NAMED), "trainable_keys"]
        raise ArtifactError(f"{where}: got {cartridges.describe(payload)}, wanted exactly one of {', '.join(known)}")
    kind = kind or _KIND_OF.get(names[0], "cartridge")
    if names[0] in PAIRS:
        layout = layout or ("tokens_first" if names[0] == "kv_data" else None)
        return _from_pairs(payload[names[0]], identity, layout, where, kind)
    values = dict(NAMED)[names[0]]
    if values not in payload:
        raise ArtifactError(f"{where}: got {names[0]} without {values}")
    return _joined(payload[names[0]], payload[values], identity, layout, where, kind)


def _from_pairs(pairs: Any, identity: ModelIdentity, layout: Layout | None, where: str, kind: Kind) -> Foreign:
    if not isinstance(pairs, (list, tuple)) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs
    ):
        raise ArtifactError(f"{where}: wanted a list with one (key, value) pair per layer")
    return _joined([key for key, _ in pairs], [value for _, value in pairs], identity, layout, where, kind)


def _joined(keys: Any, values: Any, identity: ModelIdentity, layout: Layout | None, where: str, kind: Kind) -> Foreign:
    stacked = [stack(layers, name, identity, layout, where) for layers, name in ((keys, "keys"), (values, "values"))]
    if stacked[0].shape != stacked[1].shape:
        raise ArtifactError(
            f"{where}: got keys {list(stacked[0].shape)} and values {list(stacked[1].shape)}, wanted one shape"
        )
    return Foreign(stacked[0], stacked[1], 0, kind)


def _check_meta(meta: dict[str, Any], folder: Path, found: Foreign, where: str) -> None:
    layers, tokens = found.keys.shape[:2]
    if "n_layers" in meta and meta["n_layers"] != layers:
        raise ArtifactError(
            f"{where}: got {layers}, wanted the {shown(meta['n_layers'])} that meta.json states as n_layers"
        )
    ids_file = folder / "prefix_token_ids.json"
    if not os.path.lexists(ids_file):
        return
    ids = read_json(ids_file)
    if not isinstance(ids, list) or len(ids) != tokens or any(type(one) is not int or one < 0 for one in ids):
        raise ArtifactError(f"{ids_file}: wanted a list of {tokens} token ids, one per prefix token")
    wanted = meta.get("prefix_token_ids_sha256")
    digest = hashlib.sha256(json.dumps(ids, separators=(",", ":")).encode()).hexdigest()
    if wanted is not None and wanted != digest:
        raise ArtifactError(f"{folder}: got token ids of digest {digest}, wanted {str(wanted)[:80]} of meta.json")


def _model_of(meta: dict[str, Any]) -> str | None:
    found = meta.get("model_id") or meta.get("model")
    return found if isinstance(found, str) else None


def _plain_of(meta: dict[str, Any]) -> dict[str, Any]:
    """The short plain fields of `meta.json`, for the provenance."""
    return {name: value for name, value in meta.items() if isinstance(value, (str, int)) and len(str(value)) < 200}
