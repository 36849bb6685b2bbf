"""The LPC on disk: round trip, identity, corruption, refusal."""

import dataclasses
import json

import pytest
import torch

from lpc_ray.artifact import MANIFEST_FILE, TENSOR_FILE, fetch, load_prefix, prefix_digest, publish, read_manifest
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


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 2, "evil": 1}'])
def test_a_malformed_manifest_is_refused(tmp_path, text):
    (tmp_path / MANIFEST_FILE).write_text(text)
    with pytest.raises(ArtifactError):
        read_manifest(tmp_path)


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
