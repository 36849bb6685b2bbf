"""Memory for the next cold load, allocated between loads, so that a load only copies.

A spare is a file of zeros in the host tier's folder, beside the tier's limit and never part of a prefix that was there.
"""

import logging
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

SPARE_FILE = ".spare"
HEADER_BYTES = 4096


def take_spare(tier: Path, target: Path) -> None:
    """Make the spare of folder `tier`, if it has one, the file `target`."""
    with suppress(FileNotFoundError):
        (tier / SPARE_FILE).rename(target)


def drop_spare(tier: Path) -> bool:
    """Give the memory of `tier`'s spare back; False when it has none."""
    try:
        (tier / SPARE_FILE).unlink()
    except FileNotFoundError:
        return False
    return True


def make_spare(tier: Path, num_bytes: int) -> None:
    """See that `tier` has a spare for tensors of `num_bytes` and their header; without room for it, it has none."""
    if shutil.disk_usage(tier).free < num_bytes + HEADER_BYTES:
        return
    making = tier / f"{SPARE_FILE}-{uuid.uuid4().hex}"
    try:
        with open(making, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes + HEADER_BYTES)
        making.rename(tier / SPARE_FILE)
    except OSError as error:
        logging.getLogger(__name__).warning("%s: no memory set aside for the next prefix: %s", tier, error)
        making.unlink(missing_ok=True)
