"""A store is what its URL says, or refused; what it cannot tell is an error, never an absence."""

import os
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc_ray.cli.jobs import store_url
from lpc_ray.errors import StorageError
from lpc_ray.storage import TEMPORARY, Store, absolute, check_url, open_store


@pytest.mark.parametrize("url", ["memory://", "memory:///", "memory://folder/", "file:///tmp/x//", "local:///tmp/x"])
def test_a_url_keeps_its_protocol_whatever_slashes_end_it(url):
    store = Store(url)
    assert store.is_local == url.startswith(("file", "local"))
    inner = store / "artifacts"
    assert inner.url.partition("://")[0] == url.partition("://")[0]
    assert Store(inner.url).root == inner.root and inner.root.endswith("/artifacts")


def test_the_root_of_a_memory_store_and_of_the_machine_hold_what_is_written_there(tmp_path):
    Store("memory://").write_json("root-test/a.json", 1)
    assert Store("memory:///").names("root-test") == (Store("memory://") / "root-test").names() == ["a.json"]
    Store(f"file://{tmp_path}/").write_json("a.json", 1)
    assert Store(str(tmp_path)).names() == ["a.json"] and Store("file:///").root == Store("/").root == "/"


@pytest.mark.parametrize(
    "url",
    [
        "", " ", "\t", "::", "a::b", "zip://x::file:///y", "memory:", "s3:/bucket", "data:,x", ":", "file:", "file://",
        "file://x/y", "local://x", "jar://", "jar://x", "://x", "a b://x", "run\0s", "zip://x.zip", "reference://x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("make", [Store, open_store])
def test_what_is_no_store_is_refused_in_one_line_and_makes_no_folder(tmp_path, monkeypatch, make, url):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError) as caught:
        make(url)
    assert "\n" not in str(caught.value) and "store" in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("url", ["", "  ", "memory:", "a::b"])
def test_a_jobs_store_is_checked_before_a_folder_is_made_of_it(url):
    with pytest.raises(StorageError, match="wanted"):
        store_url(SimpleNamespace(store=SimpleNamespace(url=url)))


@given(st.text(max_size=30))
def test_a_checked_url_is_checked_once_and_for_all(text):
    try:
        checked = check_url(text)
    except StorageError:
        return
    assert check_url(checked) == checked and absolute(checked).startswith(("/", checked.partition("://")[0] + "://"))


def test_an_unreachable_file_system_is_one_line():
    with pytest.raises(StorageError, match="ftp://localhost:9/x"):
        Store("ftp://localhost:9/x")


def test_a_file_system_that_fails_in_its_own_way_is_a_storage_error(monkeypatch):
    store = Store("memory://broken")
    monkeypatch.setattr(type(store.filesystem), "isdir", lambda *_: {}["nothing"])
    with pytest.raises(StorageError, match="cannot read .*broken: KeyError"):
        store.names()


def test_what_cannot_be_looked_at_is_not_taken_for_absent(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    store = Store(str(tmp_path))
    for look in (store.exists, store.names):
        with pytest.raises(StorageError, match="loop: Too many levels"):
            look("loop")
    assert not store.exists("nothing") and store.names("nothing/at/all") == []


def test_what_a_killed_writer_left_goes_with_the_next_write_once_it_is_an_hour_old(tmp_path):
    for name, age in (("old", 4000), ("new", 10)):
        file, folder = tmp_path / f"{TEMPORARY}{name}", tmp_path / f"{TEMPORARY}{name}-folder"
        folder.mkdir()
        for path in (file, folder / "inner"):
            path.write_bytes(b"torn")
        for path in (file, folder):
            os.utime(path, (time.time() - age,) * 2)
    Store(str(tmp_path)).write_json("a.json", 1)
    assert sorted(os.listdir(tmp_path)) == [f"{TEMPORARY}new", f"{TEMPORARY}new-folder", "a.json"]


def test_json_nested_too_deeply_is_one_line(tmp_path):
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(StorageError, match="nested too deeply"):
        Store(str(tmp_path)).read_json("a.json")


def test_a_relative_store_in_a_working_directory_that_is_gone_is_refused(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(
        StorageError, match="^store runs: got a working directory that is gone, wanted an absolute path$"
    ):
        absolute("runs")
