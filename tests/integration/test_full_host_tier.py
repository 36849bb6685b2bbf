"""A host tier whose memory fills up, for real: a small tmpfs in a mount namespace of its own."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMON = """
    import asyncio, sys
    from pathlib import Path

    from lpc_ray.serving.refusal import Refusal
    from lpc_ray.serving.residency import HostTier
    from lpc_ray.serving.spare import SPARE_FILE, make_spare, take_spare

    MEMORY, KIB = Path(sys.argv[1]), 1 << 10


    class Zeros:
        # A source of files of `size` bytes, which sets a spare aside as the artifact store does.
        def __init__(self, size):
            self.size = size

        def num_bytes(self, digest):
            return self.size

        def load(self, digest, folder):
            take_spare(folder.parent, folder / "data")
            (folder / "data").write_bytes(bytes(self.size))
            make_spare(folder.parent, self.size)


    def tier_of(size):
        return HostTier(MEMORY / "host", 1 << 30, Zeros(size))


    async def use(tier, *digests):
        async with tier.lease(digests) as folders:
            assert all((folder / "data").stat().st_size == tier._source.size for folder in folders.values())
            await asyncio.sleep(0.02)


    def run(coroutine):
        asyncio.run(asyncio.wait_for(coroutine, 25))
"""
SCENARIOS = {
    "a limit above the free memory is lowered to it": """
    assert tier_of(KIB).limit_bytes == 1024 * KIB
    """,
    "idle prefixes go and every load succeeds": """
    async def scenario():
        tier = tier_of(160 * KIB)
        for number in range(20):
            await use(tier, f"p{number}")
        assert tier.counts.failures == 0 and len(tier.residents()) >= 4
        assert list(tier.residents())[-1] == "p19" and "p0" not in tier.residents()
        await use(tier, "p0", "p18", "p1")
        assert not list((MEMORY / "host").glob(".loading-*"))

    run(scenario())
    """,
    "memory that others took since the start evicts too": """
    async def scenario():
        tier = tier_of(160 * KIB)
        for number in range(4):
            await use(tier, f"p{number}")
        (MEMORY / "others").write_bytes(bytes(200 * KIB))
        async with tier.lease(["p3"]), tier.lease(["q0"]), tier.lease(["q1"]):
            assert tier.residents().keys() >= {"p3", "q0", "q1"} and tier.counts.failures == 0

    run(scenario())
    """,
    "loads wait for users and never for each other": """
    async def scenario():
        tier = tier_of(300 * KIB)
        wanted = [[f"p{number}"] for number in range(9)] + [["a", "b"], ["b", "c"], ["c", "p0"]]
        await asyncio.gather(*(use(tier, *digests) for digests in wanted))
        assert tier.counts.failures == 0

    run(scenario())
    """,
    "beside pinned prefixes what does not fit is refused until it does": """
    async def scenario():
        tier = tier_of(300 * KIB)
        for digest in ("p", "q"):
            await tier.pin(digest)
        (MEMORY / "host" / SPARE_FILE).unlink()
        (MEMORY / "others").write_bytes(bytes(200 * KIB))
        try:
            await use(tier, "r")
        except Refusal as refusal:
            said = str(refusal.body)
            assert refusal.status == 503 and "got 307200 bytes of prefix r, wanted at most the" in said, said
        else:
            raise AssertionError("not refused")
        assert set(tier.residents()) == {"p", "q"}
        (MEMORY / "others").unlink()
        await use(tier, "r")

    run(scenario())
    """,
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_host_tier_in_a_megabyte_of_memory(tmp_path, scenario):
    memory = tmp_path / "shm"
    memory.mkdir()
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(COMMON) + textwrap.dedent(SCENARIOS[scenario]))
    mount = f"mount -t tmpfs -o size=1m none {memory} && PYTHONPATH=. exec {sys.executable} {script} {memory}"
    run = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "1 MiB are free there, fewer than the 1024 MiB of host_tier_bytes" in run.stderr
