"""`vllm serve` with the plugin and one flag: no Ray, vLLM's own server, prefixes by `MODEL:handle`."""

import json
import os
import subprocess
import sys

import httpx
import openai
import pytest

from lpc_ray.artifacts.handles import ARTIFACTS, set_handle
from lpc_ray.records import PrefixRef
from lpc_ray.serving.contract import cache_salt, transfer_params
from lpc_ray.storage import Store
from tests.serving import FACTS, QUESTION, Oracle, free_port, publish_texts, wait_until

TEXTS = {name: FACTS[name] for name in ("fact-red", "fact-blue")}
BASE = "station"


@pytest.fixture(scope="module")
def oracle():
    return Oracle()


@pytest.fixture(scope="module")
def library(oracle, tmp_path_factory):
    library = Store(str(tmp_path_factory.mktemp("library")))
    for handle, digest in publish_texts(oracle, library / ARTIFACTS, TEXTS).items():
        set_handle(library, handle, digest)
    return library


@pytest.fixture(scope="module")
def url(oracle, library, tmp_path_factory):
    log, port = tmp_path_factory.mktemp("vllm") / "log", free_port()
    transfer = {
        "kv_connector": "LearnedPrefixConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {"library": library.url},
    }
    flags = [
        "--dtype",
        "float32",
        "--max-model-len",
        "512",
        "--enforce-eager",
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
    ]
    flags += ["--served-model-name", BASE, "--enable-prompt-tokens-details", "--disable-sliding-window"]
    flags += ["--kv-transfer-config", json.dumps(transfer)]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", oracle.folder, *flags]
    environment = {**os.environ, "VLLM_PLUGINS": "lpc", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    url = f"http://127.0.0.1:{port}"
    with open(log, "w") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as server:
        try:
            wait_until(lambda: server.poll() is not None or _is_up(url), 180)
            assert server.poll() is None, log.read_text()[-3000:]
            yield url
        finally:
            server.terminate()
            server.wait(60)


def _is_up(url):
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def _wanted(oracle, library, handles, new_tokens=8):
    artifacts = library / ARTIFACTS
    digests = [json.loads(library.read_bytes(f"handles/{handle}.json"))["digest"] for handle in handles]
    return oracle.chat([oracle.load(artifacts, digest) for digest in digests], QUESTION, new_tokens)[0]


def _ask(client, model, **more):
    messages = [{"role": "user", "content": QUESTION}]
    return client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=8, **more)


@pytest.mark.parametrize("handles", [[], ["fact-red"], ["fact-blue"], ["fact-red", "fact-blue"]])
def test_a_name_with_handles_is_answered_from_their_prefixes(client, oracle, library, handles):
    model = BASE + (f":{'+'.join(handles)}" if handles else "")
    answer = _ask(client, model)
    assert answer.choices[0].message.content == _wanted(oracle, library, handles) and answer.model == model
    assert answer.usage.prompt_tokens == len(oracle.chat_ids(QUESTION))
    chunks = list(_ask(client, model, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == _wanted(oracle, library, handles) and {chunk.model for chunk in chunks} == {model}
    assert chunks[-1].usage.prompt_tokens == len(oracle.chat_ids(QUESTION))


def test_text_completions_and_the_list_of_models(client, oracle, library):
    answer = client.completions.create(model=f"{BASE}:fact-red", prompt="\nThe gate is", max_tokens=4, temperature=0)
    digest = json.loads(library.read_bytes("handles/fact-red.json"))["digest"]
    ids = oracle.encode("\nThe gate is")
    assert answer.choices[0].text == oracle.greedy([oracle.load(library / ARTIFACTS, digest)], ids, 4)[0]
    assert [model.id for model in client.models.list()] == [BASE, f"{BASE}:fact-blue", f"{BASE}:fact-red"]


def test_what_cannot_be_served_is_refused_and_the_server_stays_well(client, oracle, library, url):
    for model, status in ((f"{BASE}:no-such", 404), (f"{BASE}:../x", 400), (f"{BASE}:", 400), ("other", 404)):
        with pytest.raises(openai.APIStatusError) as caught:
            _ask(client, model)
        assert caught.value.status_code == status
    digest = json.loads(library.read_bytes("handles/fact-red.json"))["digest"]
    prefix = PrefixRef(digest, library.path(f"{ARTIFACTS}/{digest}"), 96)
    body = {"model": BASE, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    for fields in (
        {"kv_transfer_params": transfer_params([prefix])},
        {"cache_salt": cache_salt([prefix])},
        {"kv_transfer_params": {"lpc": 5}},
    ):
        assert httpx.post(f"{url}/v1/chat/completions", json={**body, **fields}, timeout=60).status_code == 400
    answer = _ask(client, f"{BASE}:fact-red")
    assert answer.choices[0].message.content == _wanted(oracle, library, ["fact-red"])


def test_other_endpoints_reach_no_folder_but_the_librarys(client, oracle, library, url, tmp_path):
    """vLLM's token-in endpoint takes kv_transfer_params from anyone: the connector decides."""
    elsewhere = publish_texts(oracle, Store(str(tmp_path)), {"fact-green": FACTS["fact-green"]})["fact-green"]
    prefix = PrefixRef(elsewhere, str(tmp_path / elsewhere), 96)
    body = {
        "token_ids": [0] * 96 + oracle.chat_ids(QUESTION),
        "sampling_params": {"max_tokens": 2, "temperature": 0},
        "kv_transfer_params": transfer_params([prefix]),
        "cache_salt": cache_salt([prefix]),
    }
    answer = httpx.post(f"{url}/inference/v1/generate", json=body, timeout=60)
    assert answer.status_code != 200 or answer.json()["choices"][0]["finish_reason"] == "error", answer.text
    assert _ask(client, f"{BASE}:fact-red").choices[0].message.content == _wanted(oracle, library, ["fact-red"])
