"""Handles: what may be one, and that each is written whole and alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc_ray.artifacts.handles import check_handle, find_digest, handle_names, parts_of, read_handle, set_handle
from lpc_ray.errors import ConfigError, PrefixNotFoundError, StorageError
from lpc_ray.storage import Store

FIRST, SECOND = "a" * 32, "b" * 32


@pytest.mark.parametrize("scheme", ["{}", "memory://{}"])
def test_a_handle_points_to_the_digest_it_was_last_set_to(tmp_path, scheme):
    store = Store(scheme.format(tmp_path))
    set_handle(store, "handbook-v1", FIRST)
    set_handle(store, "other", FIRST)
    set_handle(store, "handbook-v1", SECOND)
    assert read_handle(store, "handbook-v1") == SECOND
    assert handle_names(store) == ["handbook-v1", "other"] and read_handle(store, "other") == FIRST


def test_an_empty_store_has_no_handles_and_says_which_one_is_missing(tmp_path):
    store = Store(str(tmp_path))
    assert handle_names(store) == []
    with pytest.raises(PrefixNotFoundError, match=f"'nobody': not in {tmp_path}"):
        read_handle(store, "nobody")


@pytest.mark.parametrize("handle", ["", "a:b", "a+b", "a/b", "../a", ".a", "-a", "a b", "ä", "a\n", "x" * 129])
def test_a_malformed_handle_is_refused_and_nothing_is_written(tmp_path, handle):
    store = Store(str(tmp_path))
    with pytest.raises(ConfigError, match="wanted 1 to 128"):
        set_handle(store, handle, FIRST)
    assert store.names() == []


@pytest.mark.parametrize("digest", ["", "A" * 32, "a" * 31, "../../etc", "a" * 65])
def test_a_malformed_digest_is_refused(tmp_path, digest):
    with pytest.raises(ConfigError, match="hexadecimal"):
        set_handle(Store(str(tmp_path)), "a", digest)
    (tmp_path / "handles").mkdir()
    (tmp_path / "handles" / "a.json").write_text(f'{{"digest": "{digest}"}}')
    with pytest.raises(StorageError, match="hexadecimal"):
        read_handle(Store(str(tmp_path)), "a")


@pytest.mark.parametrize("handle", [FIRST, "A" * 32, "0" * 64, "1234abcd" * 5])
def test_a_handle_that_reads_as_a_digest_is_never_set(tmp_path, handle):
    store = Store(str(tmp_path))
    with pytest.raises(ConfigError, match="reads as a digest"):
        set_handle(store, handle, SECOND)
    assert store.names() == []


def test_a_digest_stands_for_its_artifact_whatever_handles_others_have_written(tmp_path):
    store = Store(str(tmp_path))
    for digest in (FIRST, SECOND):
        store.write_bytes(f"artifacts/{digest}/lpc.json", b"{}")
    store.write_json(f"handles/{FIRST}.json", {"digest": SECOND})
    assert find_digest(store, FIRST) == FIRST


def test_a_handle_that_cannot_be_looked_at_is_not_taken_for_absent(tmp_path):
    (tmp_path / "handles").mkdir()
    (tmp_path / "handles" / "a.json").symlink_to("a.json")
    with pytest.raises(StorageError, match="Too many levels"):
        find_digest(Store(str(tmp_path)), "a")


def test_concurrent_writers_of_different_handles_lose_nothing(tmp_path):
    names = [f"h{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: set_handle(Store(str(tmp_path)), name, FIRST), names))
    store = Store(str(tmp_path))
    assert handle_names(store) == sorted(names) and {read_handle(store, name) for name in names} == {FIRST}


def test_a_composition_names_its_parts_in_order():
    assert parts_of("b+a+b") == ["b", "a", "b"] and parts_of("a") == ["a"]
    for bad in ("", "a+", "+a", "a++b", "a+b/c"):
        with pytest.raises(ConfigError):
            parts_of(bad)


def test_an_artifact_is_found_by_handle_digest_or_its_first_digits(tmp_path):
    store = Store(str(tmp_path))
    other = "a" * 20 + "c" * 12
    for digest in (FIRST, other):
        store.write_bytes(f"artifacts/{digest}/lpc.json", b"{}")
    set_handle(store, "named", other)
    assert find_digest(store, "named") == find_digest(store, other) == find_digest(store, other[:21]) == other
    with pytest.raises(ConfigError, match="first digits of 2 digests"):
        find_digest(store, "a" * 20)
    for missing in (SECOND, "a" * 7, "nobody-here"):
        with pytest.raises(PrefixNotFoundError, match="neither a handle nor a digest"):
            find_digest(store, missing)


@given(st.text(max_size=140))
def test_whatever_passes_as_a_handle_is_one_path_component(text):
    try:
        handle = check_handle(text)
    except ConfigError:
        return
    assert handle and not set(handle) & set(":+/\\ \n") and not handle.startswith(".")
