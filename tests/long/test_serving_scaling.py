"""Replicas that come and go with the load, by Ray Serve's own autoscaling configuration."""

import threading

import httpx

from lpc_ray.storage import Store
from tests.serving import NAME, Oracle, application, local_admin, publish_texts, replica_ids, wait_until

SCALING = {
    "min_replicas": 1,
    "max_replicas": 2,
    "target_ongoing_requests": 1,
    "upscale_delay_s": 1,
    "downscale_delay_s": 2,
    "look_back_period_s": 2,
}


def test_a_second_replica_comes_under_load_answers_from_the_prefix_and_goes(tmp_path):
    oracle, store = Oracle(), Store(str(tmp_path / "artifacts"))
    digests = publish_texts(oracle, store, {"red": "The gate of the station is red. " * 20})
    ids = oracle.encode("\nThe gate is")
    wanted = oracle.greedy([oracle.load(store, digests["red"])], ids, 8)[0]
    stop, texts = threading.Event(), []

    def keep_asking(url):
        body = {"model": f"{NAME}:red", "prompt": ids, "max_tokens": 8, "temperature": 0}
        with httpx.Client(base_url=url, timeout=300) as http:
            while not stop.is_set():
                texts.append(http.post("/v1/completions", json=body).json()["choices"][0]["text"])

    engine = {"block_size": 32, "enforce_eager": True, "num_gpu_blocks_override": 64}
    with application(
        artifacts=store.url, prefixes=digests, autoscaling=SCALING, threads=1, max_model_len=256, engine=engine
    ) as (url, _):
        clients = [threading.Thread(target=keep_asking, args=(url,)) for _ in range(6)]
        for client in clients:
            client.start()
        try:
            wait_until(lambda: len(replica_ids(url, local_admin(store))) == 2, 240)
        finally:
            stop.set()
            for client in clients:
                client.join()
        wait_until(lambda: len(replica_ids(url, local_admin(store))) == 1, 120)
    assert set(texts) == {wanted}
