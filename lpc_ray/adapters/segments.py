"""The shared memory of the processes below this one, so that none of it is left when they end before they can unlink it."""

import os
from contextlib import suppress
from pathlib import Path

import psutil

END_SECONDS = 5
_NAMED, _UNLINKED = "/dev/shm/psm_", " (deleted)"  # as Python names what its processes share, and the system then


def held_by(pid: int) -> set[Path]:
    """The segments that a process has open, as it has for as long as it uses them; none once it has ended, or where it is
    another user's. Of segments that are unlinked already nothing is known.
    """
    found: set[Path] = set()
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:
        for file in files:
            with suppress(OSError):
                name = os.readlink(file.path)
                if name.startswith(_NAMED) and not name.endswith(_UNLINKED):
                    found.add(Path(name))
    return found


def held_below() -> set[Path]:
    """The segments of all processes below this one."""
    return {path for child in psutil.Process().children(recursive=True) for path in held_by(child.pid)}


class Segments:
    """What the processes below this one were seen to share. Ray may kill them, and what would unlink it, at once."""

    def __init__(self) -> None:
        self._processes: set[psutil.Process] = set()
        self._seen: set[Path] = set()

    def look(self) -> None:
        self._processes |= set(psutil.Process().children(recursive=True))
        self._seen |= {path for process in self._processes for path in held_by(process.pid)}

    def sweep(self) -> None:
        """Unlink what was seen and nobody has open any more. To be called when the processes have been ended; blocks, up
        to `END_SECONDS`, until they have.
        """
        psutil.wait_procs(self._processes, timeout=END_SECONDS)
        left = {path for path in self._seen if path.exists()}
        if left:
            for pid in psutil.pids():
                left -= held_by(pid)
        for path in left:
            path.unlink(missing_ok=True)
