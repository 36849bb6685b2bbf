"""Stores and tracking that a run could not be written to are refused by the plan's own command, and nothing is written."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from lpc_ray.errors import ConfigError, StorageError
from lpc_ray.run.outputs import check_outputs
from lpc_ray.storage import Store, check_room


def _config(uri=None):
    return SimpleNamespace(tracking=SimpleNamespace(uri=uri))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("/dev/null", "/dev/null is no folder, wanted one or nothing there"),
        ("/dev/null/x", "/dev/null is no folder"),
        ("/proc/x", "cannot write /proc: "),
        ("/proc/self/fd/x/y", "cannot write /proc/"),
        ("FILE", "a.txt is no folder"),
        ("FILE/b/c", "a.txt is no folder"),
        ("LOOP", "loop is no folder"),
        ("DANGLING", "dangling is no folder"),
        ("/tmp/" + "n" * 300, "got a name of 300 bytes, wanted at most 255"),
        ("/tmp/" + "é" * 128, "got a name of 256 bytes, wanted at most 255"),
        ("/tmp" + "/abcdefghi" * 400, "got paths of 4208 bytes below it, wanted at most 4096"),
    ],
)
def test_a_store_that_cannot_be_made_is_refused_before_anything_is_written(tmp_path, url, message):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name, file in (("FILE", "a.txt"), ("LOOP", "loop"), ("DANGLING", "dangling")):
        url = url.replace(name, str(tmp_path / file))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StorageError) as caught:
        check_outputs(_config(), Store(url) / "run")
    assert message in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 800
    assert sorted(tmp_path.iterdir()) == before


def test_a_store_that_can_be_made_leaves_nothing_behind(tmp_path):
    check_outputs(_config(), Store(str(tmp_path / "a" / "b")) / "run")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to("to")
    check_room(str(tmp_path / "link" / "x"), 0)
    assert list((tmp_path / "to").iterdir()) == []


def test_a_folder_that_is_not_ours_is_refused(unprivileged):
    closed = unprivileged / "closed"
    closed.mkdir()
    closed.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.geteuid() == 0:
        os.chown(closed, 0, 0)
        os.seteuid(65534)
    with pytest.raises(StorageError, match=r"closed/x/run: .*(Permission denied|no folder)"):
        check_outputs(_config(), Store(str(closed / "x")) / "run")


@pytest.mark.parametrize(
    "uri", ["", "runs", "/dev/null", "file:///tmp/x", "htp://h", "http://", "http://a:b", "http://[::1", "s3://b"]
)
def test_tracking_that_is_neither_a_server_nor_a_database_is_refused(tmp_path, uri):
    with pytest.raises(ConfigError, match=r"^tracking\.uri: got .*, wanted an MLflow server"):
        check_outputs(_config(uri), Store(str(tmp_path)))


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("sqlite:////proc/x/m.db", StorageError),
        ("sqlite:////dev/null/m.db", StorageError),
        ("sqlite:////tmp", ConfigError),
    ],
)
def test_a_database_that_cannot_be_made_is_refused(tmp_path, uri, error):
    with pytest.raises(error):
        check_outputs(_config(uri), Store(str(tmp_path)))


@pytest.mark.parametrize(
    "uri",
    ["http://127.0.0.1:5000", "https://h/x", "sqlite:///m.db", "sqlite+pysqlite:////tmp/m.db", "postgresql://u@h/d"],
)
def test_servers_and_databases_pass(tmp_path, uri, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_outputs(_config(uri), Store(str(tmp_path)))
    assert list(Path(tmp_path).iterdir()) == []


def test_a_remote_store_wants_a_tracking_server():
    with pytest.raises(
        ConfigError, match="tracking.uri: got none, wanted a server, because the store memory://x is not"
    ):
        check_outputs(_config(), Store("memory://x"))
