"""Other people's data beside the repository: `../shared/data`, or the folder that LPC_SHARED_DATA names."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("LPC_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
needs_shared_data = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no data sets in {SHARED} (set LPC_SHARED_DATA)")
