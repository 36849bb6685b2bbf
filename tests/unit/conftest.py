"""Unit tests need one thread: the models are tiny."""

import os
import tempfile
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def unprivileged():
    """A folder that every user may enter, for a test that gives up root's rights, which are taken again afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        os.seteuid(os.getuid())
