"""Users without a home, with one that cannot be written, and folders that are named and are none."""

import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lpc_ray.adapters.pipeline.context import RunContext
from lpc_ray.config.job import load
from lpc_ray.errors import ConfigError, StorageError
from lpc_ray.home import cache, check_sockets, make_in_cache, own_home, settle
from lpc_ray.model.embedded import fetch_embedded_model, model_cache, prefix_cache
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.plan import make_plan
from lpc_ray.storage import Store
from lpc_ray.terminal import Console

NAMES = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "TMPDIR", "LPC_CACHE", "HF_HOME", "XDG_CACHE_HOME")


@pytest.fixture
def bare(monkeypatch, unprivileged):
    """Nothing is said of a home or a cache, `tmp` in a folder that is ours is the temporary one, and `root` is not ours."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    root = unprivileged / "root"
    (root / ".cache" / "huggingface").mkdir(parents=True)
    (root / ".cache" / "lpc_ray" / "models").mkdir(parents=True)
    (unprivileged / "closed").mkdir(mode=0)
    (unprivileged / "tmp").mkdir(mode=0o777)
    (unprivileged / "tmp").chmod(0o777)
    for folder in (root, *root.rglob("*")):
        folder.chmod(0o555)
    monkeypatch.setenv("TMPDIR", str(unprivileged / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    if os.geteuid() == 0:
        os.seteuid(65534)
    return unprivileged


def _substitute(bare: Path) -> Path:
    return bare / "tmp" / f"lpc_ray-home-{os.geteuid()}"


@pytest.mark.parametrize("home", ["/nonexistent", "", "relative", "root", "root/.cache/../../root"])
def test_a_home_that_cannot_be_written_is_replaced_and_said(bare, monkeypatch, home):
    monkeypatch.setenv("HOME", str(bare / home) if home.startswith("root") else home)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/root/.config")
    line = settle()
    assert line is not None and line.endswith(
        f"cannot be written, so libraries keep their files in {_substitute(bare)}"
    )
    assert Path.home() == _substitute(bare) and Path.home().stat().st_mode & 0o777 == 0o700
    assert "XDG_CONFIG_HOME" not in os.environ
    assert settle() is None  # the second time it is a home like any other
    with pytest.raises(StorageError, match="got no home folder that can be written, wanted HOME to name one"):
        own_home()


def test_caches_in_a_home_that_can_only_be_read_are_read(bare, monkeypatch):
    monkeypatch.setenv("HOME", str(bare / "root"))
    settle()
    assert os.environ["HF_HOME"] == str(bare / "root/.cache/huggingface")
    assert model_cache() == bare / "root/.cache/lpc_ray/models"


def test_a_home_that_can_be_written_stays(bare, monkeypatch):
    monkeypatch.setenv("HOME", str(bare / "tmp"))
    assert settle() is None and own_home() == bare / "tmp" and cache() == bare / "tmp" / ".cache" / "lpc_ray"


def test_a_cache_folder_that_cannot_be_written_is_read_and_replaced(bare, monkeypatch):
    monkeypatch.setenv("HOME", str(bare / "tmp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "root" / ".cache"))
    assert str(settle()).startswith(f"XDG_CACHE_HOME {bare}/root/.cache: cannot be written")
    assert "XDG_CACHE_HOME" not in os.environ and cache() == bare / "root/.cache/lpc_ray"


def test_a_user_whom_the_system_does_not_know_gets_a_name_and_a_home(bare, monkeypatch):
    def unknown(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setenv("LPC_CACHE", str(bare / "root/.cache/lpc_ray"))
    assert str(settle()).startswith("home (none): cannot be written")
    assert os.environ["USER"] == f"uid{os.geteuid()}" and model_cache() == bare / "root/.cache/lpc_ray/models"


@pytest.mark.parametrize("named", ["/nonexistent/tmp", "root", "file"])
def test_a_temporary_folder_that_cannot_be_written_is_refused_by_name(bare, monkeypatch, named):
    (bare / "tmp" / "file").touch()
    folder = {"root": bare / "root", "file": bare / "tmp" / "file"}.get(named, named)
    monkeypatch.setenv("TMPDIR", str(folder))
    with pytest.raises(ConfigError, match=f"^TMPDIR: got {folder}, wanted a folder that can be written$"):
        settle()


def test_a_substitute_that_is_another_users_is_refused(bare, monkeypatch):
    monkeypatch.setenv("HOME", "/nonexistent")
    _substitute(bare).symlink_to(bare / "root")
    with pytest.raises(ConfigError, match="is not ours alone; wanted HOME to name a folder"):
        settle()


def test_a_model_is_not_prepared_where_it_cannot_stay(bare, monkeypatch):
    monkeypatch.setenv("HOME", "/nonexistent")
    settle()
    with pytest.raises(
        StorageError, match="^LPC_CACHE: got none, and no home that can be written, wanted a folder that"
    ):
        fetch_embedded_model()
    monkeypatch.setenv("LPC_CACHE", str(bare / "root/.cache/lpc_ray"))
    with pytest.raises(
        StorageError, match="cannot write .*models: Permission denied; wanted LPC_CACHE to name a folder"
    ):
        fetch_embedded_model()
    monkeypatch.setenv("LPC_CACHE", "/etc/passwd")
    with pytest.raises(StorageError, match="cannot write /etc/passwd/x: Not a directory; wanted LPC_CACHE"):
        make_in_cache(cache() / "x")


def test_a_cache_that_no_tokenizer_could_be_read_from_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("LPC_CACHE", os.fsdecode(b"/d\xe9r"))
    with pytest.raises(StorageError, match=r"^cache /d\udce9r: got a path that is not UTF-8, wanted LPC_CACHE to name"):
        prefix_cache()


def test_a_run_in_an_object_store_needs_a_cache_for_its_copies_at_once(tmp_path, monkeypatch):
    (tmp_path / "models").symlink_to(model_cache())
    (tmp_path / "prefixes").touch()
    monkeypatch.setenv("LPC_CACHE", str(tmp_path))
    monkeypatch.chdir(Path(__file__).parents[2])
    plan = make_plan(load("jobs/configs/pi_scale.cpu.yaml", [f"tracking.uri=sqlite:///{tmp_path}/tracking.db"]))
    RunContext(plan, RunFolder(Store(str(tmp_path / "run"))), Console())
    with pytest.raises(
        StorageError, match="cannot write .*prefixes: File exists; wanted LPC_CACHE to name a folder that"
    ):
        RunContext(plan, RunFolder(Store("memory://run")), Console())


def test_a_cache_that_we_may_not_even_look_into_is_refused_by_name(bare, monkeypatch):
    monkeypatch.setenv("LPC_CACHE", str(bare / "closed" / "cache"))
    with pytest.raises(StorageError, match="cannot write .*closed/cache/models: Permission denied; wanted LPC_CACHE"):
        fetch_embedded_model()


@pytest.mark.parametrize(
    ("names", "folder"),
    [
        ({"LPC_CACHE": "/c"}, "/c"),
        ({"LPC_CACHE": "c"}, "{cwd}/c"),
        ({"LPC_CACHE": "~/c"}, "/h/c"),
        ({"LPC_CACHE": ""}, "/h/.cache/lpc_ray"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/lpc_ray"),
        ({"XDG_CACHE_HOME": ""}, "/h/.cache/lpc_ray"),
        ({"XDG_CACHE_HOME": "x"}, "/h/.cache/lpc_ray"),
        ({"LPC_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c"),
    ],
)
def test_the_cache_lies_where_it_is_named_and_nowhere_in_the_working_directory_by_chance(monkeypatch, names, folder):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/h", **names}.items():
        monkeypatch.setenv(name, value)
    assert prefix_cache() == Path(folder.format(cwd=Path.cwd())) / "prefixes"


def test_a_temporary_folder_too_long_for_sockets_is_refused_by_a_job_before_anything_starts(tmp_path, monkeypatch):
    def refused(folder):
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with pytest.raises(ConfigError) as caught:
            check_sockets()
        return str(caught.value)

    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", "/" + "t" * 38)
    check_sockets()
    assert refused("/" + "t" * 39).startswith("TMPDIR: got /ttt")
    assert "40 bytes long, wanted at most 39" in refused("/" + "t" * 39)
    assert "40 bytes" not in refused("/" + "é" * 20) and "41 bytes long" in refused("/" + "é" * 20)
    monkeypatch.setenv("RAY_TMPDIR", "/ray")
    monkeypatch.setattr(tempfile, "tempdir", "/" + "t" * 69)
    check_sockets()
    assert "71 bytes long, wanted at most 70" in refused("/" + "t" * 70)


@pytest.mark.parametrize(
    "arguments", [["--dry-run", "recipe.prompt.system=Tür"], ["--config", "tür.yaml"], ["--dry-run"]]
)
def test_a_locale_in_which_names_are_no_utf8_is_said_to_be_one(arguments):
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "jobs.pi_scale", *arguments], capture_output=True, text=True, env=environment
    )
    wanted = "error: locale: Python reads names and arguments as ascii, wanted UTF-8: set PYTHONUTF8=1\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", wanted)


@pytest.mark.parametrize("command", ["lpc_ray.cli.lpc list", "jobs.pi_scale --dry-run", "jobs.report"])
def test_a_working_directory_that_is_gone_is_one_line(tmp_path, command):
    line = f"cd {tmp_path} && rmdir {tmp_path} && exec {sys.executable} -m {command}"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)}
    )
    wanted = "error: working directory: No such file or directory, wanted one that is there: cd to another\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", wanted)
