"""Copying an LPC with all checks on the way, against the library's own loader."""

import dataclasses
import json
import time

import pytest
import torch
from safetensors.torch import save

from lpc_ray.adapters.server.source import ArtifactSource
from lpc_ray.artifacts.fetch import CHUNK_BYTES, fetch_checked
from lpc_ray.artifacts.store import MANIFEST_FILE, TENSOR_FILE, load_prefix, publish
from lpc_ray.errors import ArtifactError, PrefixNotFoundError
from lpc_ray.model.identity import ModelIdentity
from lpc_ray.serving.spare import HEADER_BYTES, SPARE_FILE, make_spare, take_spare
from lpc_ray.storage import Store

WHO = ModelIdentity("m", None, "c", "w", "t", "ct", "{}", 2, 2, 64, 8192)


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "store"))


def _publish(store, dtype=torch.float32, tokens=5000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(2, tokens, 2, 64, generator=generator).to(dtype) for _ in range(2))
    return publish(store, keys, values, WHO, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("url", ["store", "memory://fetching"])
def test_the_copy_is_the_artifact(tmp_path, dtype, url):
    store = Store(url if "://" in url else str(tmp_path / url))
    manifest = _publish(store, dtype)
    assert manifest.num_bytes > CHUNK_BYTES or dtype != torch.float32
    folder = tmp_path / "copy"
    folder.mkdir()
    assert fetch_checked(store, manifest.digest, folder, WHO) == manifest
    load_prefix(folder, WHO)
    for name in (TENSOR_FILE, MANIFEST_FILE):
        assert (folder / name).read_bytes() == store.read_bytes(f"{manifest.digest}/{name}")


@pytest.mark.parametrize("spare_bytes", [0, 100, 1 << 20])
def test_a_spare_file_becomes_exactly_the_artifact(tmp_path, store, spare_bytes):
    manifest = _publish(store, tokens=40)
    (tmp_path / TENSOR_FILE).write_bytes(b"\xff" * spare_bytes)
    fetch_checked(store, manifest.digest, tmp_path, WHO)
    assert (tmp_path / TENSOR_FILE).read_bytes() == store.read_bytes(f"{manifest.digest}/{TENSOR_FILE}")


def test_the_spare_is_allocated_and_taken_once(tmp_path, caplog):
    make_spare(tmp_path, 1 << 20)
    make_spare(tmp_path, 1 << 21)
    assert [path.name for path in tmp_path.iterdir()] == [SPARE_FILE]
    assert (tmp_path / SPARE_FILE).stat().st_blocks * 512 >= 1 << 21
    take_spare(tmp_path, tmp_path / "taken")
    assert (tmp_path / "taken").stat().st_size == (1 << 21) + HEADER_BYTES
    take_spare(tmp_path, tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_a_load_takes_the_spare_that_the_load_before_it_left(tmp_path, store):
    source, tier = ArtifactSource(store, WHO, require_gate=False), tmp_path / "tier"
    spares = []
    for number in range(2):
        manifest = _publish(store, tokens=40, seed=number)
        (target := tier / f"loading-{number}").mkdir(parents=True)
        source.load(manifest.digest, target)
        load_prefix(target, WHO)
        spares.append((target / TENSOR_FILE).stat().st_ino)
        while not (tier / SPARE_FILE).exists():
            time.sleep(0.01)
        spares.append((tier / SPARE_FILE).stat().st_ino)
    first, left, second, _ = spares
    assert left == second != first


def test_without_room_for_a_spare_there_is_none(tmp_path):
    make_spare(tmp_path, 1 << 60)
    assert not list(tmp_path.iterdir())


def _rewrite(store, digest, tensors):
    store.write_bytes(f"{digest}/{TENSOR_FILE}", tensors)


@pytest.mark.parametrize(
    "damage", ["bit", "short", "long", "empty", "text", "other", "swapped", "infinite", "huge header"]
)
def test_damaged_tensors_are_refused(tmp_path, store, damage):
    manifest = _publish(store, tokens=40)
    whole = store.read_bytes(f"{manifest.digest}/{TENSOR_FILE}")
    keys = torch.zeros(2, 40, 2, 64)
    damaged = {
        "bit": whole[:-1] + bytes([whole[-1] ^ 1]),
        "short": whole[:-8],
        "long": whole + b"\0" * 8,
        "empty": b"",
        "text": b"{}" * 100,
        "other": save({"keys": keys[:1].clone(), "values": keys[:1].clone()}),
        "swapped": save({"keys": keys, "values": keys.clone()}),
        "infinite": save({"keys": keys / 0, "values": keys}),
        "huge header": (1 << 60).to_bytes(8, "little") + whole[8:],
    }
    _rewrite(store, manifest.digest, damaged[damage])
    folder = tmp_path / "copy"
    folder.mkdir()
    with pytest.raises(ArtifactError, match=TENSOR_FILE):
        fetch_checked(store, manifest.digest, folder, WHO)


def test_other_models_and_other_digests_are_refused_by_name(tmp_path, store):
    manifest = _publish(store, tokens=40)
    with pytest.raises(ArtifactError, match="rope"):
        fetch_checked(store, manifest.digest, tmp_path, dataclasses.replace(WHO, rope="other"))
    with pytest.raises(PrefixNotFoundError):
        fetch_checked(store, "0" * 32, tmp_path, WHO)
    with pytest.raises(ArtifactError, match="hexadecimal"):
        fetch_checked(store, "../../etc", tmp_path, WHO)
    path = tmp_path / "store" / manifest.digest / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "digest": "1" * 32}))
    with pytest.raises(ArtifactError, match="wanted " + manifest.digest):
        fetch_checked(store, manifest.digest, tmp_path, WHO)
