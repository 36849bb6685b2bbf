"""Where a replica's host tier lies: a folder of its own, below one that belongs to its user."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lpc_ray.errors import ConfigError

_LOCKS: list[IO[str]] = []  # held, and so locked, until the process ends


def default_root() -> Path:
    """This user's own, in memory, or among temporary files where the machine has no /dev/shm."""
    memory = Path("/dev/shm")
    return (memory if memory.is_dir() else Path(tempfile.gettempdir())) / f"lpc_ray-{os.getuid()}"


def check_root(configured: str | None, make: bool = False) -> Path:
    """`host_tier` as configured, or the default, as far as it exists here. make: make it where it does not.

    Raises: ConfigError for what is no folder, one in which this user may not write, and a default that another user made.
    """
    root = Path(configured) if configured is not None else default_root()
    with _explained(root):
        if make:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            found = root.stat() if configured is not None else root.lstat()
        except FileNotFoundError:
            return root
        if not stat.S_ISDIR(found.st_mode):
            raise ConfigError(f"host_tier {root}: got no folder, wanted one")
        is_foreign = configured is None and found.st_uid != os.getuid()
        if is_foreign or not os.access(root, os.W_OK | os.X_OK):
            raise ConfigError(_not_ours(root))
    return root


def own_folder(configured: str | None, name: str) -> Path:
    """Folder `name` below `host_tier`, locked while this process lives; folders whose owner is dead are removed.

    Raises: as `check_root`, and ConfigError where the folder cannot be made.
    """
    check_root(configured)
    root = check_root(configured, make=True)
    with _explained(root), _guarded(root):
        lock = open(root / f"{name}.lock", "w")  # noqa: SIM115
        fcntl.flock(lock, fcntl.LOCK_EX)
        _LOCKS.append(lock)
    return root / name


def remove_ownerless(configured: str | None) -> None:
    """Remove the folders whose owner is dead. Raises: as `check_root`."""
    root = check_root(configured)
    if root.exists():
        with _explained(root), _guarded(root):
            pass


@contextmanager
def _guarded(root: Path) -> Iterator[None]:
    """Alone among those who make folders here; those whose owner is dead are removed first."""
    with open(root / "guard", "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        for path in root.glob("*.lock"):
            with open(path) as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                path.unlink()
        yield


@contextmanager
def _explained(root: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise ConfigError(_not_ours(root)) from error
    except OSError as error:
        raise ConfigError(
            f"host_tier {root}: {error.strerror or error}, wanted a folder that can be written"
        ) from error


def _not_ours(root: Path) -> str:
    there = next(path for path in (root, *root.parents) if os.path.exists(path))
    return (
        f"host_tier {root}: got {there} of user {there.stat().st_uid}, in which user {os.getuid()} may not write; wanted a "
        "folder of this user's own, as it is when host_tier is left out"
    )
