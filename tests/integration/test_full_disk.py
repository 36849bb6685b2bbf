"""A disk that fills up, for real: a file system of a few kilobytes in a mount namespace of its own."""

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
    import sys
    from pathlib import Path


    import torch

    from lpc_ray.artifacts.store import publish
    from lpc_ray.errors import StorageError
    from lpc_ray.storage import Store
    from lpc_ray.traces.store import TraceStore
    from tests.tiny import IDENTITY, rows

    disk = Path(sys.argv[1])
    (disk / "kept").write_bytes(b"kept")
    keys = torch.randn(3, 4096, 2, 8)
    for write in (
        lambda: publish(Store(str(disk / "artifacts")), keys, keys.clone(), IDENTITY, 1),
        lambda: TraceStore(Store(str(disk / "traces"))).append(rows(300, taught=True)),
        lambda: Store(str(disk)).write_bytes("kept", bytes(1 << 20)),
    ):
        try:
            write()
        except StorageError as error:
            print(error)
    print(sorted(str(path.relative_to(disk)) for path in disk.rglob("*") if path.is_file()), (disk / "kept").read_bytes())
"""


def test_a_full_disk_is_one_clear_error_and_leaves_nothing_half_written(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    mount = f"mount -t tmpfs -o size=128k none {disk} && PYTHONPATH=. exec {sys.executable} {script} {disk}"
    run = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert run.returncode == 0, run.stderr
    *errors, left = run.stdout.splitlines()
    assert len(errors) == 3 and all("No space left on device" in error and str(disk) in error for error in errors)
    assert left == "['kept'] b'kept'"
