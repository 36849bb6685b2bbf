"""Runs programs that nobody trusts, under bubblewrap: no network, no host files, limits on all that can run out.

Inside, `/` is read-only and holds the system's /usr, the interpreter with its packages under /runtime, and the folders that
the caller hands in, a private /tmp among them. A caller that is root gives each sandbox a user id of its own, because the
kernel's limit on processes does not bind root; any other caller gets a user namespace.
"""

import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lpc_ray.errors import VerificationError
from lpc_ray.verification.sandbox.limits import Execution, Limits, supervised
from lpc_ray.verification.sandbox.seccomp import memory_filter

# The program starts when its runner says so, and not at all when the runner died while the sandbox was being made.
_GREETING = 'echo ready >&0 && read -r go && exec "$@" </dev/null'
_AS_ROOT_OF_NOTHING = ["--unshare-user", "--disable-userns", "--uid", "0", "--gid", "0"]
_PLACE = re.compile(r"\{(/[^}]*)\}")
_FIRST_SANDBOX_UID = 1_000_000
_LONGEST_PATH = 4096  # PATH_MAX of Linux, its NUL included
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
        """Run `command` to its end or to a limit; whatever it started ends with it.

        read_only, writable: absolute path inside → host path of more folders. `{/path}` in the command is such a path.
        Raises: VerificationError when the sandbox cannot be made.
        """
        if self.unsandboxed:
            places = {"/root": self.home / "root", **read_only, **writable}
            return supervised(
                [_PLACE.sub(lambda place: str(places[place[1]]), part) for part in command],
                limits,
                self.home,
                is_greeting=False,
                cwd=self.home / cwd.lstrip("/"),
                env={
                    **os.environ,
                    "HOME": str(self.home / "root"),
                    "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
                },
            )
        settings = _bubblewrap(self.home, cwd, read_only, writable, self.uid, limits.disk_bytes)
        program = [*_limited(limits, self.uid), *(_PLACE.sub(r"\1", part) for part in command)]
        # The settings name host folders; in a file, they are in no command line that the program could read.
        with _anonymous_file("\0".join(settings).encode()) as arguments, _anonymous_file(memory_filter()) as calls:
            full = [
                "bwrap",
                "--args",
                str(arguments),
                "--seccomp",
                str(calls),
                "--",
                "sh",
                "-c",
                _GREETING,
                "sh",
                *program,
            ]
            return supervised(full, limits, self.home, pass_fds=(arguments, calls))


@contextmanager
def open_sandbox(unsandboxed: bool = False) -> Iterator[Sandbox]:
    """A sandbox over a new folder with `root` and `tmp` in it; the folder is removed at the end.

    Raises: VerificationError as `check_available`, and when the folder cannot be removed.
    """
    check_available(unsandboxed)
    uid = _FIRST_SANDBOX_UID + secrets.randbelow(1_000_000_000) if os.geteuid() == 0 and not unsandboxed else 0
    folder = Path(tempfile.mkdtemp(prefix="lpc-sandbox-"))
    try:
        home = folder / "home"
        (home / "root").mkdir(parents=True)
        (home / "tmp").mkdir()
        (home / "tmp").chmod(0o1777)
        yield Sandbox(home, unsandboxed, uid)
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove what a program may have left in any depth and with any permissions. Raises: VerificationError."""
    # rm's own error is the one to raise
    subprocess.run(["chmod", "-R", "u+rwx", "--", folder], capture_output=True, check=False)
    done = subprocess.run(["rm", "-rf", "--", folder], capture_output=True, text=True, check=False)
    if done.returncode:
        raise VerificationError(f"sandbox: cannot remove {folder}: {done.stderr.strip()[-300:]}")


def make_enterable(sandbox: Sandbox, folder: str) -> None:
    """See to it that `folder`, an absolute path inside, is a folder of the sandbox's user that can be entered, whatever a
    program that has ended made of it.
    """
    path = sandbox.home
    for part in Path(folder).parts[1:]:
        path /= part
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            path.mkdir()
            own(sandbox, path)
        path.chmod(path.stat().st_mode | 0o755)  # bubblewrap enters it as root without capabilities


def drop_links_out(sandbox: Sandbox) -> None:
    """Remove every symbolic link that leads, or could lead, out of the program's own folders: to what is put beside them
    for the tests, or to the system. One that stays inside by its text, with `..` at its beginning only, is kept.

    Raises: VerificationError.
    """
    # find's own error is the one to raise
    subprocess.run(["chmod", "-R", "u+rX", "--", sandbox.home], capture_output=True, check=False)
    listing = ["-type", "l", "-printf", r"%P\0%l\0"]
    done = subprocess.run(["find", sandbox.home, *listing], capture_output=True, check=False)
    if done.returncode:
        raise VerificationError(
            f"sandbox: cannot look through what was left: {os.fsdecode(done.stderr).strip()[-300:]}"
        )
    paths = os.fsdecode(done.stdout).split("\0")
    root = str(sandbox.home) if sandbox.unsandboxed else "/"
    tops = [os.path.join(root, folder.name) for folder in sandbox.home.iterdir()]
    links = zip(paths[:-1:2], paths[1::2], strict=True)
    leading_out = [sandbox.home / path for path, target in links if not _stays_inside(root, tops, path, target)]
    # No call takes the path of a link that lies too deep: all that it lies in goes.
    too_deep = [link for link in leading_out if len(os.fsencode(link)) >= _LONGEST_PATH]
    for folder in {sandbox.home.joinpath(*link.relative_to(sandbox.home).parts[:2]) for link in too_deep}:
        remove(folder)
    for link in filter(os.path.lexists, leading_out):
        link.parent.chmod(link.parent.stat().st_mode | 0o700)
        link.unlink()


def _stays_inside(root: str, tops: list[str], path: str, target: str) -> bool:
    """Whether a link leads into one of the folders `tops`. path: the link's own, below `root`, none of its folders a link."""
    parts = target.split("/")
    while parts and parts[0] in ("..", "."):
        parts.pop(0)
    if ".." in parts:
        return False
    end = os.path.normpath(os.path.join(root, os.path.dirname(path), target))
    return any(end == top or end.startswith(f"{top}/") for top in tops)


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
        private += _AS_ROOT_OF_NOTHING
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
    folders += ["--perms", "1777", "--size", str(disk_bytes), "--tmpfs", "/dev/shm"]
    for folder in sorted(home.iterdir()):
        folders += ["--bind", str(folder), f"/{folder.name}"]
    for path, source in writable.items():
        folders += ["--bind", str(source), path]
    for path, source in read_only.items():
        folders += ["--ro-bind", str(source), path]
    environment = [word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)]
    sealed = ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", cwd]
    lifetime = ["--die-with-parent", "--new-session", "--clearenv"]
    return [*private, *lifetime, *system, *runtime, *folders, *environment, *sealed]


def _limited(limits: Limits, uid: int) -> list[str]:
    command = ["prlimit", f"--as={limits.memory_bytes}", f"--nproc={limits.processes}", f"--fsize={limits.file_bytes}"]
    command += ["--core=0", "--nofile=256", f"--cpu={int(limits.seconds) + 1}"]
    if uid:
        # The second bubblewrap changes no mount: it takes from the user the means to make user namespaces.
        command += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs"]
        command += ["bwrap", *_AS_ROOT_OF_NOTHING, "--die-with-parent", "--dev-bind", "/", "/", "--"]
    return command


@contextmanager
def _anonymous_file(content: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("settings")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
