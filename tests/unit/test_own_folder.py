"""Whose folder the host tier is, on a machine with several users."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lpc_ray.errors import ConfigError
from lpc_ray.serving import own_folder as module
from lpc_ray.serving.own_folder import check_root, default_root, own_folder
from lpc_ray.serving.settings import server_settings

ROOT = Path(__file__).resolve().parents[2]


def test_by_default_each_user_has_a_folder_of_their_own(monkeypatch):
    assert server_settings({}).host_tier is None
    assert default_root().name == f"lpc_ray-{os.getuid()}"
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    assert default_root().name == "lpc_ray-4321"


def test_replicas_of_one_user_share_a_root_and_what_dead_ones_left_goes(tmp_path):
    script = f"from lpc_ray.serving.own_folder import own_folder; own_folder({str(tmp_path / 'x')!r}, 'dead').mkdir()"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": "."})
    assert (tmp_path / "x" / "dead").is_dir()
    first = own_folder(str(tmp_path / "x"), "first")
    first.mkdir()
    assert own_folder(str(tmp_path / "x"), "second").parent == first.parent and first.is_dir()
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["first", "first.lock", "guard", "second.lock"]
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o700
    with open(tmp_path / "x" / "first.lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_folder_of_another_user_is_one_line(tmp_path, monkeypatch):
    """As the other user sees it: every write to the root, or to its guard, is denied."""
    me = os.getuid()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(
        ConfigError, match=rf"^host_tier {tmp_path}: got {tmp_path} of user {me}, in which user {me} may not"
    ):
        own_folder(str(tmp_path), "a")
    monkeypatch.undo()

    def denied(file, lock):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module.fcntl, "flock", denied)
    with pytest.raises(ConfigError, match="as it is when host_tier is left out$"):
        own_folder(str(tmp_path), "a")


def test_a_default_folder_that_another_user_made_first_is_not_used(tmp_path, monkeypatch):
    for name, make in (("there", Path.mkdir), ("link", lambda path: path.symlink_to(tmp_path))):
        make(tmp_path / name)
        monkeypatch.setattr(module, "default_root", lambda name=name: tmp_path / name)
        with monkeypatch.context() as other:
            other.setattr(os, "getuid", lambda: 4321)
            with pytest.raises(
                ConfigError, match="no folder" if name == "link" else "of user .* user 4321 may not write"
            ):
                check_root(None)
    assert check_root(str(tmp_path / "link")) == tmp_path / "link", "whoever configures a link means it"


def test_a_folder_that_cannot_be_made_is_told_where_it_can_be_tried(tmp_path, monkeypatch):
    assert check_root(str(tmp_path / "later")) == tmp_path / "later" and not (tmp_path / "later").exists()
    with pytest.raises(ConfigError, match="^host_tier /proc/1/tier: .*, wanted a folder"):
        check_root("/proc/1/tier", make=True)
    with pytest.raises(ConfigError, match="host_tier: got '', wanted at least 1 character"):
        server_settings({"host_tier": ""})
    monkeypatch.chdir(tmp_path)
    assert server_settings({"host_tier": "tier"}).host_tier == str(tmp_path / "tier")


def test_a_file_in_the_way_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="got no folder, wanted one"):
        own_folder(str(tmp_path / "file"), "a")
    with pytest.raises(ConfigError, match="Not a directory, wanted a folder"):
        own_folder(str(tmp_path / "file" / "below"), "a")
