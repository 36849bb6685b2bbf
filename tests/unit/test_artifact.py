"""The LPC on disk: round trip, identity, corruption, refusal."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_ray.artifacts.handles import MANIFEST_FILE
from lpc_ray.artifacts.manifest import Manifest, parse_manifest
from lpc_ray.artifacts.store import (
    TENSOR_FILE,
    describe,
    fetch,
    load_prefix,
    load_stored,
    prefix_digest,
    publish,
    read_manifest,
    record_verification,
    stored_manifest,
)
from lpc_ray.errors import ArtifactError, PrefixNotFoundError, StorageError
from lpc_ray.storage import Store
from tests.tiny import IDENTITY


def _tensors(tokens: int = 5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(3, tokens, 2, 8, generator=generator).to(dtype) for _ in range(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_published_prefix_comes_back_bit_for_bit(tmp_path, dtype):
    keys, values = _tensors(dtype=dtype)
    store = Store(str(tmp_path))
    manifest = publish(store, keys, values, IDENTITY, 1, provenance={"objective": "ntp"})
    got, got_keys, got_values = load_prefix(tmp_path / manifest.digest, IDENTITY)
    assert torch.equal(got_keys, keys) and torch.equal(got_values, values)
    assert got == manifest and got.provenance == {"objective": "ntp"}
    assert got.num_bytes == 3 * 2 * 8 * 2 * dtype.itemsize * 5
    assert store.names() == [manifest.digest]


def test_the_digest_depends_on_tensors_and_identity_and_not_on_where_the_model_lies():
    keys, values = _tensors()
    base = prefix_digest(keys, values, IDENTITY, 1)
    moved = dataclasses.replace(IDENTITY, model_id="/elsewhere", revision="main")
    assert prefix_digest(keys, values, moved, 1) == base
    assert prefix_digest(keys, values, dataclasses.replace(IDENTITY, rope="x"), 1) != base
    assert prefix_digest(keys, values, IDENTITY, 0) != base
    assert prefix_digest(values, keys, IDENTITY, 1) != base


@pytest.mark.parametrize("field", ["config_hash", "weights_hash", "tokenizer_hash", "chat_template_hash", "rope"])
def test_another_model_is_refused_with_field_got_and_wanted(tmp_path, field):
    manifest = publish(Store(str(tmp_path)), *_tensors(), IDENTITY, 1)
    other = dataclasses.replace(IDENTITY, **{field: "other"})
    with pytest.raises(ArtifactError) as caught:
        load_prefix(tmp_path / manifest.digest, other)
    assert field in str(caught.value) and "other" in str(caught.value) and getattr(IDENTITY, field) in str(caught.value)


def test_corrupt_tensors_are_refused(tmp_path):
    manifest = publish(Store(str(tmp_path)), *_tensors(), IDENTITY, 1)
    file = tmp_path / manifest.digest / TENSOR_FILE
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArtifactError, match="digest"):
        load_prefix(tmp_path / manifest.digest, IDENTITY)
    file.write_bytes(data[:100])
    with pytest.raises(ArtifactError, match="corrupt"):
        load_prefix(tmp_path / manifest.digest, IDENTITY)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[" * 100_000, '{"schema_version": 1}', '{"schema_version": 3, "evil": 1}']
)
def test_a_malformed_manifest_is_refused(tmp_path, text):
    (tmp_path / MANIFEST_FILE).write_text(text)
    with pytest.raises(ArtifactError):
        read_manifest(tmp_path)


@settings(deadline=None)
@given(
    field=st.sampled_from(sorted(field.name for field in dataclasses.fields(Manifest))),
    value=st.none() | st.booleans() | st.integers(-5, 10**12) | st.text(max_size=5) | st.lists(st.text(), max_size=2)
    | st.dictionaries(st.text(), st.integers(), max_size=1) | st.floats(),
)  # fmt: skip
def test_whatever_stands_in_a_field_the_manifest_is_right_or_refused_in_one_line(field, value):
    good = dataclasses.asdict(describe(*_tensors(), IDENTITY, 1))
    try:
        manifest = parse_manifest(json.dumps({**good, field: value}), "here")
    except ArtifactError as error:
        assert str(error).startswith("here: ") and "\n" not in str(error)
        return
    assert json.dumps(dataclasses.asdict(manifest)) == json.dumps({**good, field: value})
    assert 0 <= manifest.frozen_tokens <= manifest.num_tokens and manifest.num_tokens > 0 < manifest.k_max


@pytest.mark.parametrize(
    "change",
    [
        {"num_tokens": -5}, {"num_tokens": True}, {"frozen_tokens": 6}, {"provenance": []}, {"kind": {}}, {"kind": "x"},
        {"dtype": "int8"}, {"dtype": "nn"}, {"layout": "HPLD"}, {"k_max": 0}, {"digest": "../x"}, {"evil": 1},
        {"identity": {**dataclasses.asdict(IDENTITY), "num_layers": -1}}, {"identity": []}, {"schema_version": 2},
    ],
)  # fmt: skip
def test_a_manifest_that_cannot_be_true_is_refused(change):
    good = dataclasses.asdict(describe(*_tensors(), IDENTITY, 1))
    assert parse_manifest(json.dumps(good), "here").num_tokens == 5
    with pytest.raises(ArtifactError, match="^here: "):
        parse_manifest(json.dumps({**good, **change}), "here")


def test_wrong_shapes_and_values_that_are_not_finite_are_never_published(tmp_path):
    keys, values = _tensors()
    store = Store(str(tmp_path))
    bad = keys.clone()
    bad[0, 0, 0, 0] = float("nan")
    for first, second in ((keys[:2], values[:2]), (keys, values[:, :4]), (bad, values), (keys[:, :0], values[:, :0])):
        with pytest.raises(ArtifactError):
            publish(store, first, second, IDENTITY, 1)
    assert store.names() == []


def test_an_object_store_shows_a_prefix_only_with_its_manifest(tmp_path):
    store = Store(f"memory://{tmp_path.name}/artifacts")
    manifest = publish(store, *_tensors(), IDENTITY, 1)
    folder = fetch(store, manifest.digest, tmp_path / "cache")
    assert load_prefix(folder, IDENTITY)[0] == manifest
    store.remove(f"{manifest.digest}/{MANIFEST_FILE}")
    with pytest.raises(PrefixNotFoundError):
        fetch(store, manifest.digest, tmp_path / "other")


DAMAGES = {
    "tensors truncated": lambda folder: _truncate(folder / TENSOR_FILE),
    "a bit flipped": lambda folder: _flip(folder / TENSOR_FILE),
    "tensors gone": lambda folder: (folder / TENSOR_FILE).unlink(),
    "manifest gone": lambda folder: (folder / MANIFEST_FILE).unlink(),
    "manifest no JSON": lambda folder: (folder / MANIFEST_FILE).write_text("["),
    "another's manifest": lambda folder: _change(folder / MANIFEST_FILE, digest="0" * 32),
    "both gone": lambda folder: [file.unlink() for file in list(folder.iterdir())],
}


def _truncate(file):
    file.write_bytes(file.read_bytes()[:100])


def _flip(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def _change(file, **fields):
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def _as_in_memory(folder, store):
    """Make `store` hold exactly what lies in `folder`."""
    store.remove("")
    for file in folder.rglob("*"):
        if file.is_file():
            store.write_bytes(str(file.relative_to(folder)), file.read_bytes())


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("url", ["{}", "memory://{}"])
def test_publishing_replaces_a_damaged_artifact_and_only_a_damaged_one(tmp_path, damage, url):
    local, store = Store(str(tmp_path)), Store(url.format(tmp_path))
    first = publish(local, *_tensors(), IDENTITY, 1, provenance={"by": "first"})
    DAMAGES[damage](tmp_path / first.digest)
    if not store.is_local:
        _as_in_memory(tmp_path, store)
    publish(store, *_tensors(), IDENTITY, 1, provenance={"by": "second"})
    healed, keys, _ = load_stored(store, first.digest, IDENTITY)
    assert torch.equal(keys, _tensors()[0])
    assert healed.provenance["by"] == ("first" if "tensors" in damage or "bit" in damage else "second")
    publish(store, *_tensors(), IDENTITY, 1, provenance={"by": "third"})
    assert load_stored(store, first.digest)[0] == healed and store.names() == [first.digest]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_copy_in_the_cache_that_is_not_the_stores_artifact_is_fetched_again(tmp_path, damage):
    store, cache = Store(f"memory://{tmp_path}/artifacts"), tmp_path / "cache"
    manifest = publish(store, *_tensors(), IDENTITY, 1)
    DAMAGES[damage](fetch(store, manifest.digest, cache))
    assert load_prefix(fetch(store, manifest.digest, cache), IDENTITY)[0] == manifest
    recorded = record_verification(store, manifest.digest, "p", tune={"passed": 1})
    assert read_manifest(fetch(store, manifest.digest, cache)) == recorded


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_store_is_read_itself_and_its_damage_is_not_copied(tmp_path, damage):
    store, cache = Store(f"memory://{tmp_path}/artifacts"), tmp_path / "cache"
    local = Store(str(tmp_path / "local"))
    manifest = publish(local, *_tensors(), IDENTITY, 1)
    _as_in_memory(tmp_path / "local", store)
    load_stored(store, manifest.digest, IDENTITY)
    DAMAGES[damage](tmp_path / "local" / manifest.digest)
    _as_in_memory(tmp_path / "local", store)
    for read in (lambda: load_stored(store, manifest.digest), lambda: fetch(store, manifest.digest, cache)):
        with pytest.raises((ArtifactError, PrefixNotFoundError)):
            read()
    assert not cache.exists() or Store(str(cache)).names() == []
    publish(store, *_tensors(), IDENTITY, 1)
    assert load_prefix(fetch(store, manifest.digest, cache), IDENTITY)[0] == manifest


@pytest.mark.parametrize("url", ["{}", "memory://{}"])
def test_the_same_tensors_published_again_are_what_the_store_holds_with_all_that_was_recorded(tmp_path, url):
    store = Store(url.format(tmp_path))
    first = publish(store, *_tensors(), IDENTITY, 1, kind="kv_prefix", provenance={"by": "first"})
    recorded = record_verification(store, first.digest, "p", tune={"passed": 1, "total": 2})
    again = publish(store, *_tensors(), IDENTITY, 1, kind="skill", provenance={"by": "second"}, costs={"seconds": 1})
    assert again == recorded == stored_manifest(store, first.digest) and again.kind == "kv_prefix"


def test_results_join_those_of_their_protocol_and_replace_those_of_another(tmp_path):
    store = Store(str(tmp_path))
    digest = publish(store, *_tensors(), IDENTITY, 1).digest
    record_verification(store, digest, "p", tune={"passed": 1, "total": 2})
    found = record_verification(store, digest, "p", held_out={"passed": 3, "total": 4}, gate={"reasons": ("a",)})
    both = {"protocol": "p", "tune": {"passed": 1, "total": 2}, "held_out": {"passed": 3, "total": 4}}
    assert found.verification == {**both, "gate": {"reasons": ["a"]}} == read_manifest(tmp_path / digest).verification
    before = (tmp_path / digest / MANIFEST_FILE).stat().st_ino
    record_verification(store, digest, "p", tune={"passed": 1, "total": 2}, gate={"reasons": ("a",)})
    assert (tmp_path / digest / MANIFEST_FILE).stat().st_ino == before, "nothing new, nothing written"
    assert record_verification(store, digest, "q", tune={"passed": 0, "total": 2}).verification == {
        "protocol": "q",
        "tune": {"passed": 0, "total": 2},
    }
    assert prefix_digest(*_tensors(), IDENTITY, 1) == digest


def test_a_copy_in_the_cache_takes_new_results_without_its_tensors_again(tmp_path):
    store, cache = Store(f"memory://{tmp_path}/artifacts"), tmp_path / "cache"
    digest = publish(store, *_tensors(), IDENTITY, 1).digest
    tensors = fetch(store, digest, cache) / TENSOR_FILE
    before = tensors.stat().st_ino
    recorded = record_verification(store, digest, "p", tune={"passed": 1, "total": 2})
    assert read_manifest(fetch(store, digest, cache)) == recorded and tensors.stat().st_ino == before


def test_a_store_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("a file where a folder should be")
    with pytest.raises(StorageError, match="cannot write"):
        publish(Store(str(blocked / "artifacts")), *_tensors(), IDENTITY, 1)
    with pytest.raises(StorageError, match="/proc"):
        Store("/proc/lpc_ray").check_writable()


def test_the_manifest_is_plain_json(tmp_path):
    manifest = publish(Store(str(tmp_path)), *_tensors(), IDENTITY, 1)
    raw = json.loads((tmp_path / manifest.digest / MANIFEST_FILE).read_text())
    assert raw["num_tokens"] == 5 and raw["identity"]["rope"] == "{}" and raw["layout"] == "LPHD"
