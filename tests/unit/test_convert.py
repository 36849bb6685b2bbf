"""Foreign formats: round trips against PEFT and torch themselves, and refusal of what is unknown, unfit or hostile."""

import json
import os
import pickle
import resource
from pathlib import Path

import peft
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.cache_utils import DynamicCache

from lpc_ray.artifacts.formats import read_foreign, write_foreign
from lpc_ray.artifacts.handles import ARTIFACTS, handle_names
from lpc_ray.artifacts.library import ImportRequest, add, export
from lpc_ray.artifacts.store import load_prefix, read_manifest
from lpc_ray.errors import ArtifactError, ConfigError, StorageError
from lpc_ray.prefix.attention import attach, prefix_arguments
from lpc_ray.storage import Store
from tests.tiny import tiny_identity, tiny_model

L, P, H, D = 3, 7, 2, 8
IDENTITY, CONFIG = tiny_identity(tiny_model()), tiny_model().config
IDS = torch.tensor([[5, 11, 40, 2, 96, 3]])


def _prefix(dtype=torch.float32, tokens: int = P) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(L, tokens, H, D, generator=generator).to(dtype) for _ in range(2))


def _our_logits(keys, values, model_type="llama"):
    model = attach(tiny_model(model_type))
    positions = torch.arange(IDS.shape[1])[None] + keys.shape[1]
    with torch.no_grad():
        arguments = prefix_arguments(keys, values, torch.zeros_like(IDS))
        return model(IDS, position_ids=positions, use_cache=False, **arguments).logits


def _cache_logits(keys, values):
    """The oracle: transformers' own cache object and attention."""
    cache = DynamicCache()
    for layer in range(L):
        cache.update(keys[layer].transpose(0, 1)[None], values[layer].transpose(0, 1)[None], layer)
    with torch.no_grad():
        return tiny_model()(IDS, past_key_values=cache).logits


def _published(tmp_path, keys, values, frozen=2):
    """An LPC in a store, by way of a Cartridges file written with torch."""
    file = tmp_path / "in.pt"
    torch.save(_cartridge(keys, values, frozen), file)
    store = Store(str(tmp_path / "store"))
    return store, add(store, ImportRequest(file, "cartridges", "one"), IDENTITY, CONFIG).manifest


def _cartridge(keys, values, frozen, frozen_name="frozen", wrap=nn.ParameterList):
    """The dict that the Cartridges code saves."""
    found = {}
    for name, tensor in (("keys", keys), ("values", values)):
        layers = [layer.transpose(0, 1)[None].clone() for layer in tensor]
        found[f"trainable_{name}"] = wrap([nn.Parameter(layer[:, :, frozen:]) for layer in layers])
        if frozen:
            found[f"{frozen_name}_{name}"] = wrap([nn.Parameter(layer[:, :, :frozen]) for layer in layers])
    return found


# PEFT


@pytest.mark.parametrize(("format", "peft_type"), [("peft", "CARTRIDGE"), ("peft_prefix_tuning", "PREFIX_TUNING")])
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_a_prefix_goes_through_peft_bit_for_bit_and_its_logits_there_are_ours(tmp_path, format, peft_type, model_type):
    keys, values = _prefix()
    store, manifest = _published(tmp_path, keys, values)
    export(store, "one", format, tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(tiny_model(model_type), tmp_path / "adapter").eval()
    assert loaded.active_peft_config.peft_type == peft_type
    with torch.no_grad():
        theirs = loaded(input_ids=IDS).logits
    torch.testing.assert_close(theirs, _our_logits(keys, values, model_type), atol=1e-5, rtol=0)
    loaded.save_pretrained(tmp_path / "again", save_embedding_layers=False)
    back = read_foreign(tmp_path / "again", "peft", IDENTITY)
    assert torch.equal(back.keys, keys) and torch.equal(back.values, values)
    assert back.frozen_tokens == (2 if peft_type == "CARTRIDGE" else 0)


def test_what_peft_itself_initialised_comes_in_as_it_is(tmp_path):
    config = peft.CartridgeConfig(task_type="CAUSAL_LM", num_virtual_tokens=P, num_frozen_tokens=1)
    torch.manual_seed(1)
    model = peft.get_peft_model(tiny_model(), config).eval()
    model.save_pretrained(tmp_path / "adapter")
    back = read_foreign(tmp_path / "adapter" / "adapter_model.safetensors", "peft", IDENTITY)
    with torch.no_grad():
        theirs = model(input_ids=IDS).logits
    torch.testing.assert_close(theirs, _our_logits(back.keys, back.values), atol=1e-5, rtol=0)
    assert back.frozen_tokens == 1 and back.metadata["peft_type"] == "CARTRIDGE"


def _adapter(tmp_path) -> Path:
    keys, values = _prefix()
    store, _ = _published(tmp_path, keys, values)
    export(store, "one", "peft", tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "LORA"}, "peft_type 'LORA', wanted CARTRIDGE or PREFIX_TUNING"),
        ({"peft_type": None}, "peft_type None"),
        ({"num_virtual_tokens": P + 1}, r"wanted \[8, 96\]"),
        ({"num_virtual_tokens": "7"}, "got num_virtual_tokens '7', wanted an integer"),
        ({"peft_type": "x" * 1000}, "peft_type 'x{76}\\.\\.\\., wanted"),
        ({"num_frozen_tokens": P + 1}, "wanted 0 to 7"),
        ({"num_frozen_tokens": "2"}, "num_frozen_tokens '2'"),
        ({"num_layers": 1}, r"adapter_config.json: got num_layers 1, wanted \d"),
        ({"token_dim": 7}, r"got token_dim 7, wanted \d+"),
    ],
)
def test_an_adapter_that_says_something_else_is_refused(tmp_path, change, message):
    folder = _adapter(tmp_path)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ArtifactError, match=message):
        read_foreign(folder, "peft", IDENTITY)


def test_a_path_that_does_not_exist_is_named_as_it_was_given(tmp_path):
    with pytest.raises(ArtifactError, match=f"^{tmp_path}/none: does not exist$"):
        read_foreign(tmp_path / "none", "peft", IDENTITY)


def test_an_adapter_of_another_model_and_missing_or_broken_files_are_refused(tmp_path):
    folder = _adapter(tmp_path)
    with pytest.raises(ArtifactError, match=r"wanted \[7, 128\]"):
        read_foreign(folder, "peft", tiny_identity(tiny_model(), num_layers=4))
    (folder / "adapter_model.safetensors").write_bytes(b"\x08" + b"\0" * 20)
    with pytest.raises(ArtifactError, match="not a safetensors file"):
        read_foreign(folder, "peft", IDENTITY)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"adapter_model.safetensors: does not exist$"):
        read_foreign(folder, "peft", IDENTITY)
    (folder / "adapter_config.json").write_text("[1]")
    with pytest.raises(ArtifactError, match="got a JSON list"):
        read_foreign(folder, "peft", IDENTITY)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(ArtifactError, match="adapter_config.json: does not exist"):
        read_foreign(folder, "peft", IDENTITY)


# Cartridges


@pytest.mark.parametrize("frozen_name", ["frozen", "fixed"])
@pytest.mark.parametrize("frozen", [0, 1, 3])
@pytest.mark.parametrize("wrap", [nn.ParameterList, list])
def test_a_cartridges_file_loads_frozen_part_first_and_gives_equal_logits(tmp_path, frozen_name, frozen, wrap):
    keys, values = _prefix()
    torch.save(_cartridge(keys, values, frozen, frozen_name, wrap), tmp_path / "cartridge.pt")
    got = read_foreign(tmp_path / "cartridge.pt", "cartridges", IDENTITY)
    assert torch.equal(got.keys, keys) and torch.equal(got.values, values) and got.frozen_tokens == frozen
    torch.testing.assert_close(_our_logits(got.keys, got.values), _cache_logits(keys, values), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("frozen", [0, 2])
def test_a_cartridges_file_we_write_holds_what_theirs_would(tmp_path, dtype, frozen):
    keys, values = _prefix(dtype)
    store, manifest = _published(tmp_path, keys, values, frozen)
    assert export(store, "one", "cartridges", tmp_path / "out") == ["cartridge.pt", "lpc.json"]
    assert read_manifest(tmp_path / "out") == manifest
    saved = torch.load(tmp_path / "out" / "cartridge.pt", weights_only=False)
    assert isinstance(saved["trainable_keys"], nn.ParameterList) and len(saved["trainable_keys"]) == L
    assert saved["trainable_keys"][0].shape == (1, H, P - frozen, D) and saved["trainable_keys"][0].dtype == dtype
    assert len(saved["frozen_keys"]) == len(saved["frozen_values"]) == (L if frozen else 0)
    again = add(store, ImportRequest(tmp_path / "out" / "cartridge.pt", "cartridges", "two"), IDENTITY, CONFIG).manifest
    assert again.digest == manifest.digest and again.frozen_tokens == frozen


@pytest.mark.parametrize("frozen", [0, 2, P])
def test_an_exported_cartridges_folder_comes_back_however_much_of_it_is_frozen(tmp_path, frozen):
    keys, values = _prefix()
    store, manifest = _published(tmp_path, keys, values, frozen)
    export(store, "one", "cartridges", tmp_path / "out")
    again = add(store, ImportRequest(tmp_path / "out", "cartridges", "two"), IDENTITY, CONFIG)
    assert again.manifest.digest == manifest.digest and again.manifest.frozen_tokens == frozen


def test_a_frozen_part_of_no_tokens_is_none(tmp_path):
    keys, values = _prefix()
    empty = [torch.zeros(1, H, 0, D)] * L
    torch.save({**_cartridge(keys, values, 0), "frozen_keys": empty, "frozen_values": empty}, tmp_path / "a.pt")
    got = read_foreign(tmp_path / "a.pt", "cartridges", IDENTITY)
    assert torch.equal(got.keys, keys) and got.frozen_tokens == 0


# KNLP and connector payloads


def _heads_first(tensor):
    return [layer.transpose(0, 1).clone() for layer in tensor]


def _payloads(keys, values):
    hf_keys, hf_values = _heads_first(keys), _heads_first(values)
    batched = [(key[None], value[None]) for key, value in zip(hf_keys, hf_values, strict=True)]
    tokens_first = list(zip(keys.unbind(), values.unbind(), strict=True))
    return {
        "knlp pairs": (batched, "skill"),
        "kv_data, tokens first": ({"kv_data": tokens_first, "num_tokens": P}, "cartridge"),
        "past_key_values": ({"past_key_values": tuple(batched)}, "cartridge"),
        "reasoncache": ({"reasoncache_keys": hf_keys, "reasoncache_values": hf_values}, "reasoncache"),
        "prefix, tokens first": ({"prefix_keys": keys, "prefix_values": values}, "kv_prefix"),
        "key_cache, stacked": ({"key_cache": torch.stack(hf_keys), "value_cache": torch.stack(hf_values)}, "cartridge"),
        "keys with a kind": ({"keys": hf_keys, "values": hf_values, "resource_kind": "skill"}, "skill"),
        "trainable": (_cartridge(keys, values, 2), "cartridge"),
        "under cache": ({"cache": _cartridge(keys, values, 2), "resource_kind": "kv_prefix"}, "kv_prefix"),
    }


@pytest.mark.parametrize("name", _payloads(*_prefix()))
def test_every_payload_variant_comes_in(tmp_path, name):
    keys, values = _prefix()
    payload, kind = _payloads(keys, values)[name]
    torch.save(payload, tmp_path / "payload.pt")
    got = read_foreign(tmp_path / "payload.pt", "knlp", IDENTITY)
    assert torch.equal(got.keys, keys) and torch.equal(got.values, values) and got.kind == kind


def test_axes_that_cannot_be_told_apart_are_asked_for(tmp_path):
    keys, values = _prefix(tokens=H)
    pairs = [(key, value) for key, value in zip(_heads_first(keys), _heads_first(values), strict=True)]
    torch.save(pairs, tmp_path / "payload.pt")
    with pytest.raises(ArtifactError, match="heads first and as tokens first; say which with --layout"):
        read_foreign(tmp_path / "payload.pt", "knlp", IDENTITY)
    got = read_foreign(tmp_path / "payload.pt", "knlp", IDENTITY, "heads_first")
    assert torch.equal(got.keys, keys)
    torch.save({"kv_data": list(zip(keys.unbind(), values.unbind(), strict=True))}, tmp_path / "payload.pt")
    assert torch.equal(read_foreign(tmp_path / "payload.pt", "knlp", IDENTITY).keys, keys)


def test_a_knlp_skill_must_agree_with_its_meta_and_token_ids(tmp_path):
    keys, values = _prefix()
    torch.save(_payloads(keys, values)["knlp pairs"][0], tmp_path / "cartridge.pt")
    ids = list(range(P))
    sha = "9aaa5a0b8b3b7a1ab3ef2cf0a6a2d8d7"
    meta = {"model": "/models/tiny", "n_layers": L, "budget_tokens": P, "init_method_canonical": "first_k"}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "prefix_token_ids.json").write_text(json.dumps(ids))
    got = read_foreign(tmp_path, "knlp", IDENTITY)
    assert got.metadata["init_method_canonical"] == "first_k" and got.kind == "skill"
    for change, message in (
        ({"n_layers": 4}, "got 3, wanted the 4 that meta.json states as n_layers"),
        ({"budget_tokens": 9}, "wanted the 9"),
        ({"prefix_token_ids_sha256": sha}, f"wanted {sha}"),
    ):
        (tmp_path / "meta.json").write_text(json.dumps({**meta, **change}))
        with pytest.raises(ArtifactError, match=message):
            read_foreign(tmp_path, "knlp", IDENTITY)
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "prefix_token_ids.json").write_text(json.dumps(ids[:-1]))
    with pytest.raises(ArtifactError, match="wanted a list of 7 token ids"):
        read_foreign(tmp_path, "knlp", IDENTITY)


_SAYS_32 = ({"num_tokens": 5}, {"num_virtual_tokens": P + 2}, {"prefix_len": torch.tensor(5)}, {"seq_len": "7"})


@pytest.mark.parametrize(
    "said", [*_SAYS_32, {"virtual_tokens": True}, {"n_tokens": [P]}, {"total_tokens": torch.ones(3)}]
)
@pytest.mark.parametrize("name", [name for name in _payloads(*_prefix()) if name != "knlp pairs"])
def test_a_payload_that_says_another_number_of_tokens_than_it_holds_is_refused(tmp_path, name, said):
    payload, _ = _payloads(*_prefix())[name]
    inner = {**payload, "cache": {**payload["cache"], **said}} if "cache" in payload else {**payload, **said}
    for one in (inner, {**payload, **said}):
        torch.save(one, tmp_path / "payload.pt")
        with pytest.raises(
            ArtifactError, match=f"payload.pt: holds 7 tokens, wanted the .* that it states as {next(iter(said))}"
        ):
            read_foreign(tmp_path / "payload.pt", "knlp", IDENTITY)
    torch.save({**payload, "num_tokens": torch.tensor(P), "prefix_len": float(P)}, tmp_path / "payload.pt")
    assert read_foreign(tmp_path / "payload.pt", "knlp", IDENTITY).keys.shape[1] == P


def test_a_cartridges_file_an_adapter_and_a_skill_hold_the_tokens_they_say(tmp_path):
    keys, values = _prefix()
    pairs = list(zip(keys.unbind(), values.unbind(), strict=True))
    torch.save({"kv_data": pairs, "frozen_tokens": P + 1}, tmp_path / "b.pt")
    with pytest.raises(ArtifactError, match="b.pt: states 8 as frozen_tokens, wanted 0 to the 7 tokens that it holds"):
        read_foreign(tmp_path / "b.pt", "knlp", IDENTITY)
    for said in ({"num_tokens": P - 2}, {"num_frozen_tokens": 1}):
        torch.save({**_cartridge(keys, values, 2), **said}, tmp_path / "a.pt")
        with pytest.raises(ArtifactError, match="a.pt: holds . tokens, wanted the . that it states as num_"):
            read_foreign(tmp_path / "a.pt", "cartridges", IDENTITY)
    folder = _adapter(tmp_path)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "num_tokens": P - 2}))
    with pytest.raises(
        ArtifactError, match="adapter_config.json: holds 7 tokens, wanted the 5 that it states as num_tokens"
    ):
        read_foreign(folder, "peft", IDENTITY)
    torch.save(_payloads(keys, values)["knlp pairs"][0], tmp_path / "cartridge.pt")
    (tmp_path / "meta.json").write_text(json.dumps({"num_virtual_tokens": 32}))
    with pytest.raises(
        ArtifactError, match="meta.json: holds 7 tokens, wanted the 32 that it states as num_virtual_tokens"
    ):
        read_foreign(tmp_path, "knlp", IDENTITY)


@pytest.mark.parametrize("ids", [["a", None], [1.5] * P, [True] * P, [-1] * P, [None] * P, {"a": 1}])
def test_token_ids_of_a_skill_are_whole_numbers(tmp_path, ids):
    torch.save(_payloads(*_prefix())["knlp pairs"][0], tmp_path / "cartridge.pt")
    (tmp_path / "prefix_token_ids.json").write_text(json.dumps(ids))
    with pytest.raises(ArtifactError, match="wanted a list of 7 token ids"):
        read_foreign(tmp_path, "knlp", IDENTITY)


# Refusal


@pytest.mark.parametrize("format", ["cartridges", "peft"])
def test_a_layout_is_refused_where_the_format_has_one(tmp_path, format):
    with pytest.raises(ConfigError, match=f"got heads_first, wanted none for {format}"):
        read_foreign(tmp_path, format, IDENTITY, "heads_first")


@pytest.mark.parametrize("model", ["other/model", "/models/other"])
def test_a_file_that_names_another_model_is_told_of(tmp_path, model):
    folder = _adapter(tmp_path)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": model}))
    skill = tmp_path / "skill"
    skill.mkdir()
    torch.save(_payloads(*_prefix())["knlp pairs"][0], skill / "cartridge.pt")
    (skill / "meta.json").write_text(json.dumps({"model_id": model}))
    store = Store(str(tmp_path / "store"))
    for path, format in ((folder, "peft"), (skill, "knlp")):
        [warning] = add(store, ImportRequest(path, format, "x"), IDENTITY, CONFIG).warnings
        assert f"was made for {model}, not for tiny-llama" in warning
        same = tiny_identity(tiny_model(), model_id=f"hub/{model.rpartition('/')[2]}")
        assert add(store, ImportRequest(path, format, "x"), same, CONFIG).warnings == []


def test_an_import_says_where_its_handle_pointed_before(tmp_path):
    keys, values = _prefix()
    store, first = _published(tmp_path, keys, values)
    torch.save(_cartridge(values, keys, 2), tmp_path / "swapped.pt")
    again = ImportRequest(tmp_path / "swapped.pt", "cartridges", "one")
    assert add(store, again, IDENTITY, CONFIG).previous == first.digest
    assert add(store, again, IDENTITY, CONFIG).previous is None, "it points there already"
    store.write_bytes("handles/one.json", b"{")
    assert add(store, again, IDENTITY, CONFIG).previous is None


@pytest.mark.parametrize(("changes", "limit"), [({"sliding_window": 7}, "sliding window of 7"), ({}, None)])
def test_a_prefix_that_fills_a_models_window_is_not_taken_in(tmp_path, changes, limit):
    torch.save(_cartridge(*_prefix(), 1), tmp_path / "a.pt")
    store = Store(str(tmp_path / "store"))
    config, request = tiny_model("mistral", **changes).config, ImportRequest(tmp_path / "a.pt", "cartridges", "one")
    if limit is None:
        assert add(store, request, IDENTITY, config).manifest.num_tokens == P
        return
    with pytest.raises(ConfigError, match=f"got 8 tokens of prefix .*{limit}"):
        add(store, request, IDENTITY, config)
    assert store.names() == []


@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("cartridges", "cartridge.pt"), ("knlp", "cartridge.pt"), ("knlp", "meta.json"), ("knlp", "prefix_token_ids.json"),
        ("peft", "adapter_config.json"), ("peft", "adapter_model.safetensors"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "folder"])
def test_what_is_no_file_is_never_opened(tmp_path, format, name, kind):
    torch.save(_payloads(*_prefix())["knlp pairs"][0], tmp_path / "cartridge.pt")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "CARTRIDGE", "num_virtual_tokens": 7}')
    place = tmp_path / name
    place.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(place)
        case "device":
            place.symlink_to("/dev/zero")
        case "loop":
            place.symlink_to(name)
        case "folder":
            place.mkdir()
    for path in (tmp_path, place):
        with pytest.raises(ArtifactError) as caught:
            read_foreign(path, format, IDENTITY)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("format", ["cartridges", "knlp", "peft"])
def test_a_path_too_long_to_be_one_is_one_line(tmp_path, format):
    with pytest.raises(ArtifactError, match="does not exist"):
        read_foreign(tmp_path / ("x" * 300), format, IDENTITY)


def _torch_file(kind: str, file: Path) -> None:
    old = {"_use_new_zipfile_serialization": False}
    match kind:
        case "text":
            file.write_text("hello world, this is text\n")
        case "nothing":
            file.write_bytes(b"")
        case "protocol 4":
            torch.save({"a": torch.zeros(2)}, file, pickle_protocol=4)
        case "old lists of parameters":
            torch.save(_cartridge(*_prefix(), 1), file, **old)
        case "TorchScript":
            torch.jit.script(nn.Linear(2, 2)).save(str(file))
        case "module":
            torch.save(nn.Linear(2, 2), file)
        case "old plain lists":
            torch.save(_cartridge(*_prefix(), 1, wrap=list), file, **old)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("text", "got neither a zip archive nor a pickle"),
        ("nothing", "got neither a zip archive nor a pickle"),
        ("protocol 4", "got a pickle protocol above 2"),
        ("old lists of parameters", "got modules in the format of torch before 1.6"),
        ("TorchScript", "got a TorchScript archive"),
        ("module", "got torch.nn.modules.linear.Linear, wanted tensors"),
    ],
)
def test_why_a_torch_file_is_refused_is_told_without_unsafe_advice(tmp_path, recwarn, kind, reason):
    _torch_file(kind, tmp_path / "a.pt")
    recwarn.clear()
    with pytest.raises(ArtifactError, match=reason) as caught:
        read_foreign(tmp_path / "a.pt", "cartridges", IDENTITY)
    assert "weights_only" not in str(caught.value) and "safe_globals" not in str(caught.value)
    assert not list(recwarn)


def test_an_old_torch_file_of_plain_lists_comes_in(tmp_path):
    _torch_file("old plain lists", tmp_path / "a.pt")
    assert read_foreign(tmp_path / "a.pt", "cartridges", IDENTITY).frozen_tokens == 1


def test_messages_name_the_layer_and_the_missing_part_and_echo_little(tmp_path):
    for name, message in (
        ("not a number", "trained values, layer 1: got values that are not finite"),
        ("frozen keys without values", "got frozen keys without frozen values"),
    ):
        torch.save(_broken(name), tmp_path / "a.pt")
        with pytest.raises(ArtifactError, match=message):
            read_foreign(tmp_path / "a.pt", "cartridges", IDENTITY)
    torch.save({"keys": [], "values": [], "resource_kind": "x" * 100_000}, tmp_path / "a.pt")
    with pytest.raises(ArtifactError, match="resource_kind 'xxx") as caught:
        read_foreign(tmp_path / "a.pt", "knlp", IDENTITY)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("format", ["cartridges", "peft", "peft_prefix_tuning"])
def test_an_export_that_finds_no_room_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, format):
    keys, values = _prefix()
    store, _ = _published(tmp_path, keys, values)
    before = sorted(tmp_path.rglob("*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StorageError, match="cannot write .*out: File too large"):
            export(store, "one", format, tmp_path / "new" / "parents" / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(StorageError, match="File name too long"):
        export(store, "one", format, tmp_path / "new" / ("x" * 300))
    assert sorted(tmp_path.rglob("*")) == before


class _Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("format", ["cartridges", "knlp"])
@pytest.mark.parametrize("place", ["top", "inside"])
def test_a_pickle_that_runs_code_is_refused_and_its_code_does_not_run(tmp_path, format, place):
    marker = tmp_path / "ran"
    payload = _Hostile(marker)
    if place == "inside":
        payload = {**_cartridge(*_prefix(), 1), "extra": payload}
    torch.save(payload, tmp_path / "hostile.pt")
    store = Store(str(tmp_path / "store"))
    with pytest.raises(ArtifactError, match="not a torch file of tensors alone") as caught:
        add(store, ImportRequest(tmp_path / "hostile.pt", format, "bad"), IDENTITY, CONFIG)
    assert not marker.exists() and store.names() == [] and "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)


def test_a_plain_pickle_and_an_object_of_another_class_are_refused(tmp_path):
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(_Hostile(tmp_path / "ran"), protocol=2))
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    for name in ("plain.pt", "module.pt", "missing.pt"):
        with pytest.raises(ArtifactError):
            read_foreign(tmp_path / name, "cartridges", IDENTITY)
    assert not (tmp_path / "ran").exists()


def _broken(name: str):
    keys, values = _prefix()
    good = _cartridge(keys, values, 1, wrap=list)
    nan = [layer.detach().clone() for layer in good["trainable_values"]]
    nan[1][0, 0, 0, 0] = float("nan")
    short = [layer[:, :, :-1] if number == 1 else layer for number, layer in enumerate(good["trainable_keys"])]
    return {
        "a list": [keys, values],
        "a tensor": keys,
        "nothing": {},
        "no values": {"trainable_keys": good["trainable_keys"]},
        "a missing layer": {**good, "trainable_keys": good["trainable_keys"][:-1]},
        "a layer too many": {**good, "trainable_values": [*good["trainable_values"], good["trainable_values"][0]]},
        "another head count": {**good, "trainable_keys": [torch.zeros(1, H + 1, 6, D)] * L},
        "another head dim": {**good, "trainable_keys": [torch.zeros(1, H, 6, D + 1)] * L},
        "a batch of two": {**good, "trainable_keys": [torch.zeros(2, H, 6, D)] * L},
        "layers of two lengths": {**good, "trainable_keys": short},
        "keys longer than values": {**good, "trainable_keys": [torch.zeros(1, H, 9, D)] * L},
        "not a number": {**good, "trainable_values": nan},
        "integers": {**good, "trainable_keys": [torch.zeros(1, H, 6, D, dtype=torch.int64)] * L},
        "double": {**good, "trainable_keys": [torch.zeros(1, H, 6, D, dtype=torch.float64)] * L},
        "sparse": {**good, "trainable_keys": [torch.zeros(1, H, 6, D).to_sparse()] * L},
        "strings": {**good, "trainable_keys": ["abc"] * L},
        "a number for a list": {**good, "frozen_keys": 3},
        "no tokens": {
            f"{part}_{half}": [torch.zeros(1, H, 0, D)] * L
            for part in ("trainable", "frozen")
            for half in ("keys", "values")
        },
        "an expanded tensor past the context": {**good, "trainable_keys": [torch.zeros(1).expand(1, H, 10**9, D)] * L},
        "both frozen names": {**good, "fixed_keys": good["frozen_keys"], "fixed_values": good["frozen_values"]},
        "frozen keys without values": {**good, "frozen_values": []},
    }[name]


@pytest.mark.parametrize("format", ["cartridges", "knlp"])
@pytest.mark.parametrize(
    "name",
    [
        "a list", "a tensor", "nothing", "no values", "a missing layer", "a layer too many", "another head count",
        "another head dim", "a batch of two", "layers of two lengths", "keys longer than values", "not a number", "integers",
        "double", "sparse", "strings", "a number for a list", "no tokens", "an expanded tensor past the context",
        "both frozen names", "frozen keys without values",
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_clear_error_and_nothing_is_written(tmp_path, format, name):
    torch.save(_broken(name), tmp_path / "broken.pt")
    store = Store(str(tmp_path / "store"))
    with pytest.raises(ArtifactError) as caught:
        add(store, ImportRequest(tmp_path / "broken.pt", format, "bad"), IDENTITY, CONFIG)
    assert "\n" not in str(caught.value) and "broken.pt" in str(caught.value)
    assert store.names() == [] and handle_names(store) == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400), at=st.integers(0, 3000), whole=st.booleans())
def test_bytes_that_are_no_such_file_are_always_an_artifact_error(tmp_path, data, at, whole):
    good = tmp_path / "good.pt"
    if not good.exists():
        torch.save(_cartridge(*_prefix(), 1), good)
    original = good.read_bytes()
    (tmp_path / "fuzzed.pt").write_bytes(data if whole else original[:at] + data + original[at + len(data) :])
    for format in ("cartridges", "knlp"):
        try:
            got = read_foreign(tmp_path / "fuzzed.pt", format, IDENTITY)
        except ArtifactError:
            continue
        assert got.keys.shape[0] == L and torch.isfinite(got.keys).all()


def test_a_malformed_handle_is_refused_before_the_file_is_read(tmp_path):
    with pytest.raises(ConfigError, match="wanted 1 to 128 letters"):
        add(Store(str(tmp_path)), ImportRequest(tmp_path / "none.pt", "cartridges", "a/b"), IDENTITY, CONFIG)


def test_an_export_is_whole_or_absent_and_never_overwrites(tmp_path):
    keys, values = _prefix()
    store, manifest = _published(tmp_path, keys, values)
    export(store, "one", "peft", tmp_path / "out")
    with pytest.raises(ArtifactError, match="exists already"):
        export(store, "one", "cartridges", tmp_path / "out")
    with pytest.raises(AttributeError):
        write_foreign(tmp_path / "torn", "peft", None, keys, values)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.pt", "out", "store"]
    assert (
        load_prefix(store.path(f"{ARTIFACTS}/{manifest.digest}"), IDENTITY)[0].provenance["imported_from"]
        == "cartridges"
    )
