"""Runs programs that nobody trusts, under bubblewrap: no network, no host files, limits on all that can run out.

Inside, `/` is read-only and holds the system's /usr, the interpreter with its packages under /runtime, a private /tmp, and
the folders that the caller hands in. A caller that is root gives each sandbox a user id of its own, because the kernel's
limit on processes does not bind root; any other caller gets a user namespace.
"""

import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import psutil

from lpc_ray.errors import VerificationError

Limit = Literal["", "time", "memory", "output", "disk"]
MIB = 1024**2
_POLL_SECONDS = 0.05
_PLACE = re.compile(r"\{(/[^}]*)\}")
_FIRST_SANDBOX_UID = 1_000_000
_ENVIRONMENT = {
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
    "PATH": "/runtime/bin:/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/runtime/python/lib",
    "PYTHONPATH": "/runtime/packages",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use. `memory_bytes`: address space of each process, and resident memory of all together.

    `file_bytes`: one file. `disk_bytes`: the handed-in folders together, and /tmp. `output_bytes`: stdout plus stderr.
    """

    seconds: float = 60.0
    memory_bytes: int = 2048 * MIB
    processes: int = 64
    file_bytes: int = 64 * MIB
    disk_bytes: int = 256 * MIB
    output_bytes: int = MIB


@dataclass(frozen=True, slots=True)
class Execution:
    """How a program ended. `exceeded`: the limit it was killed for; the exit code then says nothing."""

    exit_code: int
    output: str
    error: str
    seconds: float
    exceeded: Limit = ""


@dataclass(frozen=True)
class Sandbox:
    """Top-level folders of the host folder `home` are the writable ones inside: `home/root` is /root.

    unsandboxed: run as the caller, in `home`, without isolation; absolute paths are then the host's own. Only the command
    line asks for it. Raises: VerificationError when bubblewrap is missing or cannot work here.
    """

    home: Path
    unsandboxed: bool = False
    uid: int = 0

    def run(
        self,
        command: list[str],
        limits: Limits,
        cwd: str = "/root",
        read_only: Mapping[str, Path] = {},
        writable: Mapping[str, Path] = {},
    ) -> Execution:
        """Run `command` to its end or to a limit; no process of it is left when this returns.

        read_only, writable: absolute path inside → host path of more folders. `{/path}` in the command is such a path.
        """
        if self.unsandboxed:
            places = {"/root": self.home / "root", **read_only, **writable}
            return _supervised(
                [_PLACE.sub(lambda place: str(places[place[1]]), part) for part in command],
                limits,
                self.home,
                cwd=self.home / cwd.lstrip("/"),
                env={
                    **os.environ,
                    "HOME": str(self.home / "root"),
                    "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
                },
            )
        full = [
            *_bubblewrap(self.home, cwd, read_only, writable, self.uid, limits.disk_bytes),
            *_limited(limits, self.uid),
            *(_PLACE.sub(r"\1", part) for part in command),
        ]
        done = _supervised(full, limits, self.home)
        if done.error.startswith("bwrap: "):
            raise VerificationError(f"sandbox: {done.error.strip().splitlines()[0]}")
        return done


@contextmanager
def open_sandbox(unsandboxed: bool = False) -> Iterator[Sandbox]:
    """A sandbox over a new empty folder with `root` in it; the folder is removed at the end."""
    check_available(unsandboxed)
    uid = _FIRST_SANDBOX_UID + secrets.randbelow(1_000_000_000) if os.geteuid() == 0 and not unsandboxed else 0
    with tempfile.TemporaryDirectory(prefix="lpc-sandbox-") as folder:
        home = Path(folder) / "home"
        (home / "root").mkdir(parents=True)
        yield Sandbox(home, unsandboxed, uid)


def own(sandbox: Sandbox, folder: Path) -> None:
    """Hand `folder` and all below it to the sandbox's user."""
    if sandbox.uid:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, sandbox.uid, sandbox.uid, follow_symlinks=False)


def check_available(unsandboxed: bool = False) -> None:
    """Raises: VerificationError, saying what to install, when programs cannot be isolated on this machine."""
    if unsandboxed:
        return
    missing = [name for name in ("bwrap", "prlimit", "setpriv") if shutil.which(name) is None]
    if missing:
        raise VerificationError(
            f"sandbox: {', '.join(missing)} not found; install bubblewrap and util-linux (apt-get install bubblewrap), or "
            "say --unsandboxed on the command line where the machine itself may be lost"
        )


def _bubblewrap(
    home: Path, cwd: str, read_only: Mapping[str, Path], writable: Mapping[str, Path], uid: int, disk_bytes: int
) -> list[str]:
    private = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if uid:
        private += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        private += ["--unshare-user", "--disable-userns"]
    system = [word for path in ("/etc", "/runtime", "/runtime/bin") for word in ("--perms", "0755", "--dir", path)]
    system += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib64"):
        system += ["--symlink", f"usr/{name}", f"/{name}"] if Path(f"/{name}").is_symlink() else []
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):
        system += ["--ro-bind-try", path, path]
    python = f"/runtime/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    runtime = ["--ro-bind", sys.base_prefix, "/runtime/python"]
    runtime += ["--ro-bind", sysconfig.get_path("purelib"), "/runtime/packages"]
    runtime += ["--symlink", python, "/runtime/bin/python", "--symlink", python, "/runtime/bin/python3"]
    folders = ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/tmp", "/dev/shm"):
        folders += ["--perms", "1777", "--size", str(disk_bytes), "--tmpfs", path]
    for folder in sorted(home.iterdir()):
        folders += ["--bind", str(folder), f"/{folder.name}"]
    for path, source in writable.items():
        folders += ["--bind", str(source), path]
    for path, source in read_only.items():
        folders += ["--ro-bind", str(source), path]
    environment = [word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)]
    sealed = ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", cwd]
    lifetime = ["--die-with-parent", "--new-session", "--clearenv"]
    return ["bwrap", *private, *lifetime, *system, *runtime, *folders, *environment, *sealed, "--"]


def _limited(limits: Limits, uid: int) -> list[str]:
    command = ["prlimit", f"--as={limits.memory_bytes}", f"--nproc={limits.processes}", f"--fsize={limits.file_bytes}"]
    command += ["--core=0", "--nofile=256", f"--cpu={int(limits.seconds) + 1}"]
    if uid:
        command += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs"]
    return command


def _supervised(
    command: list[str], limits: Limits, home: Path, cwd: Path | None = None, env: dict | None = None
) -> Execution:
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    readers = [_Reader(process.stdout, limits.output_bytes), _Reader(process.stderr, limits.output_bytes)]
    exceeded: Limit = ""
    try:
        while process.poll() is None and not exceeded:
            time.sleep(_POLL_SECONDS)
            exceeded = _exceeded(process, readers, limits, home, time.monotonic() - started)
    finally:
        _kill(process)
    for reader in readers:
        reader.join()
    if not exceeded and sum(reader.seen for reader in readers) > limits.output_bytes:
        exceeded = "output"
    output, error = (reader.text() for reader in readers)
    return Execution(process.returncode, output, error, time.monotonic() - started, exceeded)


def _exceeded(process: subprocess.Popen, readers: list["_Reader"], limits: Limits, home: Path, seconds: float) -> Limit:
    if seconds > limits.seconds:
        return "time"
    if sum(reader.seen for reader in readers) > limits.output_bytes:
        return "output"
    if _resident_bytes(process.pid) > limits.memory_bytes:
        return "memory"
    return "disk" if _used_bytes(home, limits.disk_bytes) > limits.disk_bytes else ""


def _kill(process: subprocess.Popen) -> None:
    """End the program and all its descendants: in a sandbox they die with its first process."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.kill()
    for child in family:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def _resident_bytes(pid: int) -> int:
    total = 0
    try:
        for child in psutil.Process(pid).children(recursive=True):
            try:
                total += child.memory_info().rss
            except psutil.NoSuchProcess:
                continue
    except psutil.NoSuchProcess:
        pass
    return total


def _used_bytes(folder: Path, enough: int) -> int:
    """Bytes on disk below `folder`, links not followed; counting ends beyond `enough`. A file counts as 4 KiB at least."""
    total, waiting = 0, [folder]
    while waiting and total <= enough:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += max(4096, entry.stat(follow_symlinks=False).st_size)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
        except (FileNotFoundError, PermissionError):
            continue
    return total


class _Reader(threading.Thread):
    """Drains a pipe, keeping its first `keep` bytes."""

    def __init__(self, pipe: IO[bytes], keep: int):
        super().__init__(daemon=True)
        self.seen = 0
        self._pipe, self._keep, self._kept = pipe, keep, bytearray()
        self.start()

    def run(self) -> None:
        with self._pipe as pipe:
            while block := os.read(pipe.fileno(), 65536):
                self._kept += block[: max(0, self._keep - len(self._kept))]
                self.seen += len(block)

    def text(self) -> str:
        return self._kept.decode("utf-8", errors="replace")
