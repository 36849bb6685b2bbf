"""Runs a process under limits that only an onlooker can keep: wall time, output, and what all its descendants use."""

import errno
import os
import socket
import stat
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import psutil

from lpc_ray.errors import VerificationError

MIB = 1024**2
POLL_SECONDS = 0.05
START_SECONDS = 60.0
# Outside a sandbox a daemon may hold the pipe for as long as it likes.
_DRAIN_SECONDS = 5.0
Limit = Literal["", "time", "memory", "output", "disk"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use. `memory_bytes`: address space of each process, and resident memory of all together.

    `file_bytes`: one file. `disk_bytes`: the handed-in folders together with open files that no folder names any more; as
    much again in /dev/shm. `output_bytes`: stdout plus stderr.
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


def supervised(command: list[str], limits: Limits, home: Path, is_greeting: bool = True, **how: Any) -> Execution:
    """Run `command` in the limits; what it started ends with it. home: the folder whose size counts as disk use.

    is_greeting: the command says a word on its stdin, a socket, when it stands, and waits for one before it goes on.
    Raises: VerificationError when a command that greets ends or hangs before it has done so.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            command,
            stdin=theirs.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **how,
        )
        theirs.close()
        assert process.stdout is not None and process.stderr is not None
        readers = [_Reader(process.stdout, limits.output_bytes), _Reader(process.stderr, limits.output_bytes)]
        exceeded: Limit = ""
        try:
            greeted = not is_greeting or _greet(ours)
            started = time.monotonic()
            while greeted and process.poll() is None and not exceeded:
                time.sleep(POLL_SECONDS)
                exceeded = _exceeded(process, readers, limits, home, time.monotonic() - started)
        finally:
            _kill(process)
    for reader in readers:
        reader.join(_DRAIN_SECONDS)
    if not exceeded and sum(reader.seen for reader in readers) > limits.output_bytes:
        exceeded = "output"
    output, error = (reader.text() for reader in readers)
    if not greeted:
        raise VerificationError(f"sandbox: {error.strip() or 'did not start'}")
    return Execution(process.returncode, output, error, time.monotonic() - started, exceeded)


def _greet(ours: socket.socket) -> bool:
    """Wait until the sandbox stands, and let its program start; one that fell over instead says nothing."""
    ours.settimeout(START_SECONDS)
    try:
        if not ours.recv(16):
            return False
        ours.sendall(b"go\n")
    except (ConnectionError, TimeoutError):
        return False
    return True


def _exceeded(process: subprocess.Popen, readers: list["_Reader"], limits: Limits, home: Path, seconds: float) -> Limit:
    if seconds > limits.seconds:
        return "time"
    if sum(reader.seen for reader in readers) > limits.output_bytes:
        return "output"
    family = _descendants(process.pid)
    if _resident_bytes(family) > limits.memory_bytes:
        return "memory"
    unnamed = _unnamed_bytes(family)
    return "disk" if unnamed + _used_bytes(home, limits.disk_bytes) > limits.disk_bytes else ""


def _kill(process: subprocess.Popen) -> None:
    """End the program and all its descendants: in a sandbox they die with its first process."""
    family = _descendants(process.pid)
    process.kill()
    for child in family:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _resident_bytes(family: list[psutil.Process]) -> int:
    total = 0
    for child in family:
        try:
            total += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def _unnamed_bytes(family: list[psutil.Process]) -> int:
    """Bytes of open files that were removed, which no count of folders finds."""
    found = {}
    for child in family:
        try:
            with os.scandir(f"/proc/{child.pid}/fd") as descriptors:
                for entry in descriptors:
                    status = entry.stat()
                    if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                        found[status.st_dev, status.st_ino] = status.st_blocks * 512
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended, or is not yet the program
            continue
    return sum(found.values())


def _used_bytes(folder: Path, enough: int) -> int:
    """Bytes on disk below `folder`, links not followed; counting ends beyond `enough`. A file counts as 4 KiB at least.

    A folder that cannot be looked into, or lies too deep to be named, counts as more than enough.
    """
    total, waiting = 0, [folder]
    while waiting and total <= enough:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += max(4096, entry.stat(follow_symlinks=False).st_size)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ENAMETOOLONG):
                raise
            total = enough + 1
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
