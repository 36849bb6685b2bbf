"""The shared memory of the processes below this one, so that none of it is left when they end before they can unlink it."""

from contextlib import suppress
from pathlib import Path

import psutil

END_SECONDS = 5
_NAMED = "/dev/shm/psm_"  # as Python names what its processes share


def mapped_by(process: psutil.Process) -> set[Path]:
    """The segments that a process has mapped; none once it has ended, or where it is another user's."""
    with suppress(psutil.Error, OSError):
        return {Path(one.path) for one in process.memory_maps() if one.path.startswith(_NAMED)}
    return set()


def mapped_below() -> set[Path]:
    """The segments of all processes below this one."""
    return {path for child in psutil.Process().children(recursive=True) for path in mapped_by(child)}


class Segments:
    """What the processes below this one were seen to share. Ray may kill them, and what would unlink it, at once."""

    def __init__(self) -> None:
        self._processes: set[psutil.Process] = set()
        self._seen: set[Path] = set()

    def look(self) -> None:
        self._processes |= set(psutil.Process().children(recursive=True))
        self._seen |= {path for process in self._processes for path in mapped_by(process)}

    def sweep(self) -> None:
        """Unlink what was seen and nobody has mapped any more. To be called when the processes have been ended; blocks, up
        to `END_SECONDS`, until they have.
        """
        psutil.wait_procs(self._processes, timeout=END_SECONDS)
        left = {path for path in self._seen if path.exists()}
        if left:
            for process in psutil.process_iter():
                left -= mapped_by(process)
        for path in left:
            path.unlink(missing_ok=True)
