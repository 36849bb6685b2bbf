"""The shared memory that a job's processes hold, by which is known what of it they leave behind."""

from pathlib import Path

import psutil


def segments_of(pid: int) -> set[Path]:
    """The segments in /dev/shm, as Python names them, that a process or one below it has mapped."""
    found: set[Path] = set()
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return found
    for process in processes:
        try:
            found |= {Path(one.path) for one in process.memory_maps() if one.path.startswith("/dev/shm/psm_")}
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
            continue  # it has ended meanwhile
    return found
