"""Two replicas: where handles go, and what becomes of requests when a replica or an engine is killed."""

import os
import signal
import threading
import time
from collections import Counter

import httpx
import psutil
import pytest

from lpc_ray.storage import Store
from tests.serving import (
    FACTS,
    NAME,
    QUESTION,
    Oracle,
    application,
    local_admin,
    publish_texts,
    replica_ids,
    wait_until,
)

REPEATS = 6


@pytest.fixture(scope="module")
def oracle():
    return Oracle()


@pytest.fixture(scope="module")
def served(oracle, tmp_path_factory):
    """The server's HTTP client, and handle → the text that its prefix makes of the question."""
    store = Store(str(tmp_path_factory.mktemp("replicas") / "artifacts"))
    digests = publish_texts(oracle, store, FACTS)
    ids = oracle.chat_ids(QUESTION)
    wanted = {handle: oracle.greedy([oracle.load(store, digest)], ids, 6)[0] for handle, digest in digests.items()}
    with (
        application(
            artifacts=store.url,
            prefixes=digests,
            replicas=2,
            threads=1,
            max_model_len=256,
            engine={"block_size": 32, "enforce_eager": True, "num_gpu_blocks_override": 64},
        ) as (url, _),
        httpx.Client(base_url=url, timeout=300, headers=local_admin(store)) as http,
    ):
        yield http, wanted


def _ask(http, handle):
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": f"{NAME}:{handle}", "messages": messages, "max_tokens": 6, "temperature": 0}
    return http.post("/v1/chat/completions", json=body)


def _text(answer):
    return answer.json()["choices"][0]["message"]["content"]


def _holders(http):
    """Handle → the replicas that hold its prefix."""
    return {row["id"]: row["replicas"] for row in http.get("/v1/prefixes").json()["data"]}


def _hits(http):
    return Counter({row["id"]: row["hits"] for row in http.get("/v1/prefixes").json()["data"]})


def _share_of_repeats_that_reach_a_holder(http, wanted):
    for handle in FACTS:
        assert _text(_ask(http, handle)) == wanted[handle]
    time.sleep(1)  # what a replica holds reaches the router within a fraction of a second
    holders = _holders(http)
    before = _hits(http)
    for _ in range(REPEATS):
        for handle in FACTS:
            assert _text(_ask(http, handle)) == wanted[handle]
    assert all(set(holders[handle]) <= set(now) for handle, now in _holders(http).items())
    missed = sum(len(now) - len(holders[handle]) for handle, now in _holders(http).items())
    gained = (_hits(http) - before).total()
    assert gained == REPEATS * len(FACTS)
    return 1 - missed / gained


def _replica_processes():
    found = psutil.Process().children(recursive=True)
    return [process for process in found if _is_replica(process)]


def _is_replica(process):
    try:
        return "ServeReplica" in " ".join(process.cmdline()) and "prefixes" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _kill_under_load(http, wanted, process):
    """SIGKILL `process` while requests run; no answer may be wrong; returns the statuses seen."""
    stop, statuses, wrong = threading.Event(), Counter(), []

    def keep_asking(handle):
        with httpx.Client(base_url=http.base_url, timeout=300) as own:
            while not stop.is_set():
                answer = _ask(own, handle)
                statuses[answer.status_code] += 1
                if answer.status_code == 200 and _text(answer) != wanted[handle]:
                    wrong.append((handle, answer.text))

    clients = [threading.Thread(target=keep_asking, args=(handle,)) for handle in FACTS]
    for client in clients:
        client.start()
    wait_until(lambda: statuses[200] >= len(FACTS))
    os.kill(process.pid, signal.SIGKILL)
    time.sleep(5)
    stop.set()
    for client in clients:
        client.join()
    assert wrong == []
    return statuses


def _wait_for_two_replicas(http):
    wait_until(lambda: len(replica_ids(str(http.base_url).rstrip("/"), http.headers)) == 2, 240)


def test_handles_fill_replicas_evenly_and_repeats_reach_a_holder(served):
    http, wanted = served
    assert _share_of_repeats_that_reach_a_holder(http, wanted) >= 0.9
    held = Counter(replica for replicas in _holders(http).values() for replica in replicas)
    assert len(held) == 2 and max(held.values()) <= 6


def test_a_killed_replica_costs_only_its_own_requests_and_is_replaced(served):
    http, wanted = served
    statuses = _kill_under_load(http, wanted, _replica_processes()[0])
    assert statuses[200] > 0 and set(statuses) <= {200, 503}
    _wait_for_two_replicas(http)
    assert _share_of_repeats_that_reach_a_holder(http, wanted) >= 0.9


def test_a_killed_engine_is_replaced_and_answers_right_again(served):
    http, wanted = served
    engine = next(
        child
        for process in _replica_processes()
        for child in process.children(recursive=True)
        if "EngineCore" in " ".join(child.cmdline())
    )
    statuses = _kill_under_load(http, wanted, engine)
    assert set(statuses) <= {200, 500, 503} and statuses.total() > statuses[200] > 0
    wait_until(lambda: all(_ask(http, handle).status_code == 200 for handle in FACTS), 240)
    for handle, text in wanted.items():
        assert _text(_ask(http, handle)) == text
