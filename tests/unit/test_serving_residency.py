"""The host tier against a model of it: what is resident, in what order it leaves, and who waits."""

import asyncio
import threading
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_ray.errors import ArtifactError, PrefixNotFoundError
from lpc_ray.serving.refusal import Refusal
from lpc_ray.serving.residency import HostTier

SIZES = {"a": 10, "b": 20, "c": 30, "d": 40, "huge": 1000}
LIMIT = 60


class Files:
    """A source of small files; `broken` ones fail their check after having been written."""

    def __init__(self, broken=(), seconds=0.0):
        self.broken, self.seconds, self.loads = set(broken), seconds, Counter()
        self._lock = threading.Lock()

    def num_bytes(self, digest):
        if digest not in SIZES:
            raise PrefixNotFoundError(digest)
        return SIZES[digest]

    def load(self, digest, folder):
        with self._lock:
            self.loads[digest] += 1
        time.sleep(self.seconds)
        (folder / "data").write_bytes(digest.encode() * SIZES[digest])
        if digest in self.broken:
            raise ArtifactError(f"{digest}: corrupt")


def _on_disk(folder):
    return sorted(path.name for path in folder.iterdir())


def _run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([*"abcd", "huge", "broken", "absent"]), max_size=15))
def test_it_holds_the_most_recently_used_that_fit(tmp_path_factory, order):
    folder = tmp_path_factory.mktemp("tier") / "host"
    SIZES["broken"] = 50

    async def scenario():
        tier, model = HostTier(folder, LIMIT, Files(broken={"broken"})), []
        for digest in order:
            before = list(model)
            try:
                async with tier.lease([digest]) as folders:
                    assert (folders[digest] / "data").read_bytes() == digest.encode() * SIZES[digest]
            except (ArtifactError, PrefixNotFoundError, Refusal):
                assert digest in ("huge", "broken", "absent")
                assert list(tier.residents()) == before
                continue
            model = [other for other in model if other != digest] + [digest]
            while sum(SIZES[other] for other in model) > LIMIT:
                model.pop(0)
            assert list(tier.residents()) == model and _on_disk(folder) == sorted(model)
            assert tier.resident_bytes == sum(SIZES[other] for other in model) <= LIMIT
        assert tier.counts.hits + tier.counts.misses == len(order)

    _run(scenario())


def test_many_waiting_requests_cause_one_load(tmp_path):
    async def scenario():
        source = Files(seconds=0.05)
        tier = HostTier(tmp_path / "host", LIMIT, source)

        async def use():
            async with tier.lease(["a"]):
                await asyncio.sleep(0)

        await asyncio.gather(*(use() for _ in range(50)))
        assert source.loads == {"a": 1} and tier.residents()["a"].hits == 50

    _run(scenario())


def test_a_waiter_that_gives_up_does_not_end_the_load_of_the_others(tmp_path):
    async def scenario():
        tier = HostTier(tmp_path / "host", LIMIT, Files(seconds=0.1))

        async def use():
            async with tier.lease(["a"]) as folders:
                return folders["a"].exists()

        first, second = asyncio.create_task(use()), asyncio.create_task(use())
        await asyncio.sleep(0.02)
        first.cancel()
        assert await second
        assert tier.residents()["a"].hits == 1

    _run(scenario())


def test_a_failed_load_reaches_every_waiter_and_is_tried_again(tmp_path):
    async def scenario():
        source = Files(broken={"a"}, seconds=0.02)
        tier = HostTier(tmp_path / "host", LIMIT, source)

        async def use():
            async with tier.lease(["a"]):
                pass

        results = await asyncio.gather(*(use() for _ in range(5)), return_exceptions=True)
        assert all(isinstance(result, ArtifactError) for result in results) and source.loads == {"a": 1}
        assert _on_disk(tmp_path / "host") == [] and tier.counts.failures == 1
        source.broken.clear()
        await use()
        assert list(tier.residents()) == ["a"]

    _run(scenario())


def test_what_is_in_use_or_pinned_is_never_evicted(tmp_path):
    async def scenario():
        tier = HostTier(tmp_path / "host", LIMIT, Files())
        await tier.pin("b")
        async with tier.lease(["a"]):
            waiting = asyncio.create_task(_use(tier, ["d"]))
            await asyncio.sleep(0.05)
            assert not waiting.done() and set(tier.residents()) == {"a", "b"}
        await waiting
        assert set(tier.residents()) == {"b", "d"}
        with pytest.raises(Refusal) as caught:
            await _use(tier, ["c", "a", "huge"])
        assert caught.value.status == 503 and "20 are pinned" in str(caught.value)
        await tier.unpin("b")
        await _use(tier, ["c"])
        assert set(tier.residents()) == {"c"}

    _run(scenario())


async def _use(tier, digests, seconds=0.0):
    async with tier.lease(digests) as folders:
        assert all(path.exists() for path in folders.values())
        await asyncio.sleep(seconds)


def test_a_dropped_prefix_stays_until_its_last_request_ends(tmp_path):
    async def scenario():
        tier = HostTier(tmp_path / "host", LIMIT, Files())
        async with tier.lease(["a"]) as folders:
            await tier.drop("a")
            assert folders["a"].exists()
        assert tier.residents() == {} and _on_disk(tmp_path / "host") == []

    _run(scenario())


def test_a_request_that_waits_for_room_is_not_overtaken_for_ever(tmp_path):
    async def scenario():
        tier = HostTier(tmp_path / "host", LIMIT, Files())
        stop = asyncio.Event()

        async def keep_busy(offset):
            await asyncio.sleep(offset)
            while not stop.is_set():
                await _use(tier, ["c"], 0.02)

        busy = [asyncio.create_task(keep_busy(number * 0.005)) for number in range(4)]
        await asyncio.sleep(0.05)
        await _use(tier, ["d"])
        stop.set()
        await asyncio.gather(*busy)

    _run(scenario())


def test_a_load_that_waits_for_room_stops_nobody_and_not_for_ever(tmp_path):
    """Room for a and c; d needs c's. Requests for a go on, those for c come after d; when c stays in use, d is refused."""

    async def scenario():
        tier = HostTier(tmp_path / "host", LIMIT, Files(), room_seconds=0.3)
        await _use(tier, ["a"])
        async with tier.lease(["c"]):
            waiting = []
            for digest in "dc":
                waiting.append(asyncio.create_task(_use(tier, [digest])))
                await asyncio.sleep(0.05)
            for _ in range(20):
                await _use(tier, ["a"])
            assert not any(task.done() for task in waiting)
            with pytest.raises(Refusal, match="no room was free in the host tier within 0.3 s") as caught:
                await waiting[0]
            assert (caught.value.status, caught.value.code, caught.value.retry_after) == (503, "host_tier_busy", 2)
            await waiting[1]
        await _use(tier, ["d"])
        assert set(tier.residents()) == {"d"}

    _run(scenario())


def test_a_lease_that_has_ended_lets_go_and_what_is_open_can_be_read(tmp_path):
    async def scenario():
        tier = HostTier(tmp_path / "host", LIMIT, Files())
        async with tier.lease(["c"]) as lease:
            with open(lease["c"] / "data", "rb") as file:
                await lease.end()
                await lease.end()
                await _use(tier, ["d"])
                assert list(tier.residents()) == ["d"] and file.read() == b"c" * 30
        await _use(tier, ["c"])
        assert list(tier.residents()) == ["c"]

    _run(scenario())


def test_a_request_waits_for_its_prefix_so_long_and_the_load_goes_on(tmp_path):
    async def scenario():
        tier = HostTier(tmp_path / "host", LIMIT, Files(seconds=0.4), wait_seconds=0.1)
        with pytest.raises(Refusal, match=r"the prefixes were not loaded within 0\.1 s") as caught:
            await _use(tier, ["a"])
        assert (caught.value.status, caught.value.code, caught.value.retry_after) == (503, "prefix_loading", 5)
        await asyncio.sleep(0.5)
        await _use(tier, ["a"])

    _run(scenario())


def test_two_that_need_each_others_room_do_not_wait_for_ever(tmp_path):
    async def scenario():
        tier = HostTier(tmp_path / "host", LIMIT, Files(seconds=0.01))
        await _use(tier, ["c"])
        async with tier.lease(["c"]):
            waiting = [asyncio.create_task(_use(tier, digests)) for digests in (["d"], ["b"], ["c", "a"], ["a", "d"])]
            await asyncio.sleep(0.1)
        await asyncio.gather(*waiting)
        assert tier.resident_bytes <= LIMIT

    _run(scenario())


def test_a_composition_that_gives_up_holds_nothing(tmp_path):
    async def scenario():
        tier = HostTier(tmp_path / "host", LIMIT, Files(seconds=0.05))
        waiting = asyncio.create_task(_use(tier, ["a", "b"]))
        await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.sleep(0.3)
        await _use(tier, ["d"])
        await _use(tier, ["c"])
        assert set(tier.residents()) == {"c"} or set(tier.residents()) == {"b", "c"}

    _run(scenario())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=2, unique=True), min_size=1, max_size=25))
def test_concurrent_requests_for_one_or_two_prefixes_all_end_and_the_limit_holds(tmp_path_factory, requests):
    async def scenario():
        over = [digests for digests in requests if sum(SIZES[digest] for digest in digests) > LIMIT]
        tier = HostTier(tmp_path_factory.mktemp("tier") / "host", LIMIT, Files())
        seen = []

        async def use(digests):
            async with tier.lease(digests) as folders:
                for digest in digests:
                    assert (folders[digest] / "data").read_bytes() == digest.encode() * SIZES[digest]
                    await asyncio.sleep(0.001)
                seen.append(tier.resident_bytes)

        results = await asyncio.gather(*(use(digests) for digests in requests), return_exceptions=True)
        failed = [result for result in results if result is not None]
        assert len(failed) == len(over) and all(isinstance(result, Refusal) for result in failed)
        assert max(seen, default=0) <= LIMIT

    _run(scenario())
