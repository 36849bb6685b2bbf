"""The whole server over HTTP: one replica, a host tier for three prefixes and a KV cache for four."""

import asyncio
import dataclasses
import json
import random
import shutil
import threading
from pathlib import Path

import httpx
import openai
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lpc_ray.artifacts.manifest import Manifest
from lpc_ray.artifacts.store import MANIFEST_FILE, TENSOR_FILE, publish
from lpc_ray.storage import Store
from tests.serving import COLOURS, FACTS, NAME, PREFIX_TOKENS, QUESTION, Oracle, application, publish_texts, wait_until

DASHBOARD = Path(__file__).resolve().parents[2] / "cluster" / "dashboards" / "serving.json"
ADMIN = {"Authorization": "Bearer the-admin-key"}
WARM, COLD = ("fact-red", "fact-orange", "fact-yellow"), ("fact-blue", "fact-green", "fact-purple")
KEYS = {
    "admin_keys": ["the-admin-key"],
    "metrics_keys": ["key-of-the-scraper"],
    "tenants": {
        "warm": {"keys": ["key-of-warm"], "handles": list(WARM)},
        "cold": {"keys": ["key-of-cold"], "handles": list(COLD)},
        "grey": {"keys": ["key-of-grey"], "handles": ["fact-*"]},
        "slow": {"keys": ["key-of-slow"], "handles": ["fact-*"], "max_concurrent": 1, "bare_model": False},
    },
}
NOUNS = ("gates", "rain", "bread", "ships", "stone", "glass", "tea", "wool", "sand")
PROMPTS = [QUESTION, *(f"Say something about {noun}." for noun in NOUNS)]
PROMPTS += [f"What is {number} plus {number + 3}?" for number in range(10)]
TELL = "Tell me all about the gate."
TEXTS = ("\nThe gate is", "In the morning")
PAIRS = (("fact-red", "fact-blue"), ("fact-blue", "fact-red"))
EXACT = ("fact-red", "fact-blue", "fact-black")
ENGINE = {"block_size": 32, "num_gpu_blocks_override": 17, "enforce_eager": True}
BYTES = PREFIX_TOKENS * 30 * 3 * 64 * 2 * 4


@pytest.fixture(scope="module")
def oracle():
    return Oracle()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(str(tmp_path_factory.mktemp("serving") / "artifacts"))


@pytest.fixture(scope="module")
def digests(oracle, store):
    return publish_texts(oracle, store, FACTS)


@pytest.fixture(scope="module")
def odd(oracle, store):
    """The digest of a prefix of 70 tokens, which is no multiple of the block."""
    return publish_texts(oracle, store, {"odd": FACTS["fact-white"]}, num_tokens=70)["odd"]


@pytest.fixture(scope="module")
def wanted(oracle, store, digests, odd):
    """(what stands before the prompt, prompt) → transformers' greedy text and log-probs; made before the server starts."""
    tensors = {handle: oracle.load(store, digest) for handle, digest in digests.items()}
    found = {(handle, "fact"): oracle.greedy([tensors[handle]], oracle.encode(TEXTS[0]), 4) for handle in FACTS}
    found |= {(handle, "zeros"): oracle.greedy([tensors[handle]], [0] * 40, 4) for handle in ("fact-red", "fact-blue")}
    found |= {(handle, prompt): oracle.chat([tensors[handle]], prompt, 6) for handle in EXACT for prompt in PROMPTS}
    found |= {(handle, TELL): oracle.chat([tensors[handle]], TELL, 32) for handle in ("fact-red", "fact-blue")}
    found |= {(pair, QUESTION): oracle.chat([tensors[handle] for handle in pair], QUESTION, 12) for pair in PAIRS}
    for text in TEXTS:
        found["fact-red", text] = oracle.greedy([tensors["fact-red"]], oracle.encode(text), 6)
    found["bare", QUESTION] = oracle.chat([], QUESTION, 6)
    source_ids = oracle.encode(FACTS["fact-green"])[:PREFIX_TOKENS]
    found["text", TEXTS[0]] = oracle.greedy([], [*source_ids, *oracle.encode(TEXTS[0])], 6)
    keys, values = oracle.load(store, odd)
    for tokens in (70, 64):
        found["odd", tokens] = oracle.chat([(keys[:, :tokens], values[:, :tokens])], QUESTION, 6)
    return found


@pytest.fixture(scope="module")
def running(store, digests, wanted, tmp_path_factory):
    key_file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    key_file.write_text(yaml.safe_dump(KEYS))
    with application(
        artifacts=store.url,
        keys=str(key_file),
        prefixes=digests,
        max_model_len=512,
        max_num_seqs=16,
        host_tier_bytes=3 * BYTES + 1000,
        engine=ENGINE,
    ) as (url, logs):
        yield url, logs


@pytest.fixture(scope="module")
def url(running):
    return running[0]


@pytest.fixture(scope="module")
def client(url):
    return _client(url)


@pytest.fixture(scope="module")
def http(url):
    with httpx.Client(base_url=url, timeout=300) as http:
        yield http


def _client(url, key="the-admin-key", kind=openai.OpenAI):
    return kind(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=300)


def _chat(client, handle, question, **more):
    model = f"{NAME}:{handle}" if handle else NAME
    messages = [{"role": "user", "content": question}]
    return client.chat.completions.create(model=model, messages=messages, temperature=0, **more)


def _text(answer):
    return answer.choices[0].message.content


@pytest.mark.parametrize("handle", EXACT)
def test_greedy_text_is_that_of_transformers_streamed_or_not(url, oracle, wanted, handle):
    async def ask():
        client = _client(url, kind=openai.AsyncOpenAI)
        whole = [_chat(client, handle, prompt, max_tokens=6, logprobs=True) for prompt in PROMPTS]
        return await asyncio.gather(*whole), await asyncio.gather(*(_streamed(client, handle, p, 6) for p in PROMPTS))

    whole, streamed = asyncio.run(ask())
    for prompt, answer, chunks in zip(PROMPTS, whole, streamed, strict=True):
        text, logprobs = wanted[handle, prompt]
        prompt_tokens = len(oracle.chat_ids(prompt))
        assert _text(answer) == text and answer.model == f"{NAME}:{handle}"
        got = [token.logprob for token in answer.choices[0].logprobs.content]
        assert got == pytest.approx(logprobs[: len(got)], abs=1e-3)
        assert answer.usage.prompt_tokens == prompt_tokens and answer.usage.prefix_tokens == PREFIX_TOKENS
        assert answer.usage.total_tokens == prompt_tokens + answer.usage.completion_tokens
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
        assert {chunk.model for chunk in chunks} == {f"{NAME}:{handle}"}
        assert chunks[-1].usage.prompt_tokens == prompt_tokens and chunks[-1].usage.prefix_tokens == PREFIX_TOKENS


async def _streamed(client, handle, prompt, max_tokens):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return [chunk async for chunk in await _chat(client, handle, prompt, max_tokens=max_tokens, **options)]


def test_a_cold_prefix_does_not_wait_for_long_replies(url, http, wanted):
    """The tier has room for three prefixes: two are pinned, and a long reply has read the third when a fourth is asked for."""
    pinned, third = WARM[:2], WARM[2]

    async def ask():
        asynchronous = _client(url, kind=openai.AsyncOpenAI)
        options = {"stream": True, "max_tokens": 100, "extra_body": {"ignore_eos": True}}
        stream = await _chat(asynchronous, third, TELL, **options)
        await anext(stream)
        reader = asyncio.create_task(_rest(stream))
        cold = await _chat(asynchronous, "fact-blue", QUESTION, max_tokens=6)
        return cold, reader.done(), await reader

    for handle in pinned:
        assert http.post(f"/v1/prefixes/{handle}/pin", headers=ADMIN).is_success
    try:
        cold, is_over, rest = asyncio.run(ask())
    finally:
        for handle in pinned:
            assert http.delete(f"/v1/prefixes/{handle}/pin", headers=ADMIN).is_success
    assert _text(cold) == wanted["fact-blue", QUESTION][0]
    assert not is_over and rest > 0


async def _rest(stream):
    """How many chunks still come."""
    return len([chunk async for chunk in stream])


def test_first_k_is_the_same_text_in_the_prompt(client, oracle, wanted):
    text, logprobs = wanted["text", TEXTS[0]]
    prompt = oracle.encode(TEXTS[0])
    answer = client.completions.create(
        model=f"{NAME}:fact-green", prompt=prompt, max_tokens=6, temperature=0, logprobs=0
    )
    assert answer.choices[0].text == text
    assert answer.choices[0].logprobs.token_logprobs == pytest.approx(logprobs, abs=1e-3)


def test_text_completions_take_several_prompts_and_samples(client, oracle, wanted):
    model, texts = f"{NAME}:fact-red", [wanted["fact-red", text][0] for text in TEXTS]
    answer = client.completions.create(model=model, prompt=list(TEXTS), max_tokens=6, temperature=0)
    assert [choice.text for choice in answer.choices] == texts
    assert answer.usage.prompt_tokens == sum(len(oracle.encode(text)) for text in TEXTS)
    assert answer.usage.prefix_tokens == 2 * PREFIX_TOKENS
    samples = client.completions.create(model=model, prompt=TEXTS[0], max_tokens=6, temperature=1, seed=1, n=3)
    assert len(samples.choices) == 3 and samples.usage.prompt_tokens == len(oracle.encode(TEXTS[0]))
    events = client.completions.create(model=model, prompt=TEXTS[0], max_tokens=6, temperature=0, stream=True)
    assert "".join(event.choices[0].text for event in events) == texts[0]


def test_the_bare_model_answers_as_transformers_does(client, oracle, wanted):
    answer = _chat(client, None, QUESTION, max_tokens=6)
    assert _text(answer) == wanted["bare", QUESTION][0]
    assert answer.usage.prefix_tokens == 0 and answer.usage.prompt_tokens == len(oracle.chat_ids(QUESTION))


def test_composed_prefixes_are_both_seen_each_with_its_own_phases(client, wanted):
    alone = wanted["fact-red", QUESTION][1][0]
    for pair in PAIRS * 2:
        text, logprobs = wanted[pair, QUESTION]
        answer = _chat(client, "+".join(pair), QUESTION, max_tokens=12, logprobs=True)
        assert _text(answer) == text and answer.usage.prefix_tokens == 2 * PREFIX_TOKENS
        got = [token.logprob for token in answer.choices[0].logprobs.content]
        assert got == pytest.approx(logprobs[: len(got)], abs=1e-3) and got[0] != pytest.approx(alone, abs=1e-3)


SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": list(COLOURS)}},
    "required": ["colour"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "paint"}}, "required"])
def test_tools_keep_working(client, choice):
    tool = {"type": "function", "function": {"name": "paint", "description": "Paint the gate.", "parameters": SCHEMA}}
    answer = _chat(client, "fact-blue", QUESTION, max_tokens=80, tools=[tool], tool_choice=choice)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "paint" and json.loads(call.function.arguments)["colour"] in COLOURS
    assert answer.usage.prefix_tokens == PREFIX_TOKENS


def test_tools_that_the_model_may_call_or_not_are_taken(client):
    tool = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}
    answer = _chat(client, "fact-blue", QUESTION, max_tokens=8, tools=[tool], tool_choice="auto")
    assert answer.choices[0].message.content


def test_response_formats_keep_working(client):
    response_format = {"type": "json_schema", "json_schema": {"name": "gate", "schema": SCHEMA}}
    answer = _chat(client, "fact-blue", QUESTION, max_tokens=40, response_format=response_format)
    assert json.loads(_text(answer))["colour"] in COLOURS


def test_models_are_the_base_and_what_the_tenant_may_use(url, digests):
    models = list(_client(url, "key-of-warm").models.list())
    assert [model.id for model in models] == [NAME, *(f"{NAME}:{handle}" for handle in sorted(WARM))]
    red = next(model for model in models if model.id.endswith("fact-red"))
    assert (red.parent, red.kind, red.num_tokens, red.digest) == (NAME, "cartridge", 96, digests["fact-red"])
    assert _client(url, "key-of-warm").models.retrieve(f"{NAME}:fact-red").digest == digests["fact-red"]
    with pytest.raises(openai.NotFoundError):
        _client(url, "key-of-warm").models.retrieve(f"{NAME}:fact-blue")


def _post(http, body, key="the-admin-key", path="/v1/chat/completions"):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    content = body if isinstance(body, bytes) else json.dumps(body)
    return http.post(path, content=content, headers=headers)


def _body(handle="fact-red", **more):
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": f"{NAME}:{handle}", "messages": messages, "max_tokens": 4, "temperature": 0, **more}


ATTACKS = {
    "kv_transfer_params": (_body(kv_transfer_params={"lpc": {"prefixes": []}}), 400),
    "kv_transfer_params through vllm_xargs": (_body(vllm_xargs={"kv_transfer_params": "x"}), 400),
    "cache_salt": (_body(cache_salt="0" * 32), 400),
    "prompt_logprobs": (_body(prompt_logprobs=0), 400),
    "echo": (_body(echo=True), 400),
    "beam search": (_body(use_beam_search=True), 400),
    "path in a handle": (_body("../../etc/passwd"), 400),
    "unknown handle": (_body("fact-none"), 404),
    "another model": ({**_body(), "model": "gpt-4"}, 404),
    "prompt longer than context minus prefix": (
        _body(messages=[{"role": "user", "content": "gate " * 415}], max_tokens=4),
        400,
    ),
    "reply longer than context minus prefix": (_body(max_tokens=400), 400),
    "10 MB body": (b'{"model": "' + b"x" * 10_000_000 + b'"}', 413),
    "no JSON": (b"{", 400),
    "no object": (b"[]", 400),
    "no messages": ({"model": NAME}, 400),
    "negative max_tokens": (_body(max_tokens=-1), 400),
    "temperature of a string": (_body(temperature="hot"), 400),
    "prompt_logprobs of false": (_body(prompt_logprobs=False), 400),
    "surrogate in a stop string": (b'{"model": "%s", "messages": [], "stop": ["\\ud800"]}' % NAME.encode(), 400),
    "surrogate in bad words": (b'{"model": "%s", "messages": [], "bad_words": ["\\ud800"]}' % NAME.encode(), 400),
    "structured outputs of a number": (_body(structured_outputs=-1), 400),
    "structured outputs of a list": (_body(structured_outputs=[None]), 400),
    "messages in a deep nest": (b'{"model": "%s", "messages": %s}' % (NAME.encode(), b"[" * 900 + b"]" * 900), 400),
    "more samples than one may have": (_body(n="1000", temperature=1), 400),
    "stop token that the model has not": (_body(stop_token_ids=[49152], min_tokens=2), 400),
    "a schema that is itself": (
        _body(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "#"}}}),
        400,
    ),
    "a grammar that begins with itself": (_body(structured_outputs={"grammar": 'root ::= root "a" | "b"'}), 400),
    "bias for a token that the model has not": (_body(logit_bias={"49152": 1.0}), 400),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused_and_the_server_stays_well(http, attack):
    body, status = ATTACKS[attack]
    answer = _post(http, body)
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"} and answer.json()["error"]["message"]
    assert _post(http, _body()).status_code == 200


def test_a_prompt_of_token_0_is_a_prompt(http, wanted):
    zeros = [0] * 40
    for handle in ("fact-red", "fact-blue"):
        body = {"model": f"{NAME}:{handle}", "prompt": zeros, "max_tokens": 4, "temperature": 0}
        answer = _post(http, body, path="/v1/completions")
        assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == wanted[handle, "zeros"][0]


@pytest.mark.parametrize(
    "prompt", [[49152], [[5], [49152]], [-1], [2**70], [0.0, 5], [["0", 5]], [[5], "text"], [True], ["gate"] * 200]
)
def test_prompts_that_are_no_tokens_of_the_model_or_too_many_are_refused(http, prompt):
    body = {"model": f"{NAME}:fact-red", "prompt": prompt, "max_tokens": 2}
    assert _post(http, body, path="/v1/completions").status_code == 400
    assert _post(http, _body()).status_code == 200


def test_keys_decide_who_sees_what(http):
    assert _post(http, _body(), key=None).status_code == 401
    assert _post(http, _body(), key="wrong-key").status_code == 401
    assert _post(http, _body("fact-red"), key="key-of-warm").status_code == 200
    hidden, absent = (
        _post(http, _body("fact-red"), key="key-of-cold"),
        _post(http, _body("fact-rex"), key="key-of-cold"),
    )
    assert hidden.status_code == absent.status_code == 404
    assert hidden.text.replace("fact-red", "") == absent.text.replace("fact-rex", "")
    assert _post(http, _body("fact-blue+fact-red"), key="key-of-cold").status_code == 404
    for method, path in (("GET", "/v1/prefixes"), ("PUT", "/v1/prefixes/x"), ("DELETE", "/v1/prefixes/x")):
        assert http.request(method, path, headers={"Authorization": "Bearer key-of-warm"}).status_code == 403
    assert http.get("/metrics").status_code == 401
    scraper = {"Authorization": "Bearer key-of-the-scraper"}
    assert http.get("/metrics", headers=scraper).status_code == 200
    assert http.get("/v1/prefixes", headers=scraper).status_code == 403
    assert _post(http, _body(), key="key-of-the-scraper").status_code == 403
    assert _post(http, {**_body(), "model": NAME}, key="key-of-slow").status_code == 404
    assert http.get("/nowhere").json()["error"]["code"] == "no_such_route"


def test_a_tenant_beyond_its_limit_waits_its_turn(url, http):
    with _chat(_client(url, "key-of-slow"), "fact-red", "Count to fifty.", max_tokens=64, stream=True) as stream:
        next(iter(stream))
        refused = _post(http, _body(), key="key-of-slow")
        assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
        list(stream)
    wait_until(lambda: _post(http, _body(), key="key-of-slow").status_code == 200, 10)


def _listed(http):
    return {row["id"]: row for row in http.get("/v1/prefixes", headers=ADMIN).json()["data"]}


def _load(http, handle, digest, **more):
    return http.put(f"/v1/prefixes/{handle}", headers=ADMIN, json={"digest": digest, **more})


def test_a_moved_handle_leaves_requests_in_flight_on_the_old_prefix(client, http, wanted, digests):
    red, blue = wanted["fact-red", TELL][0], wanted["fact-blue", TELL][0]
    assert _load(http, "moving", digests["fact-red"]).json()["previous_digest"] is None
    stream = iter(_chat(client, "moving", TELL, max_tokens=32, stream=True))
    parts = [next(stream), next(stream)]
    assert _load(http, "moving", digests["fact-blue"]).json()["previous_digest"] == digests["fact-red"]
    after = _chat(client, "moving", TELL, max_tokens=32)
    parts += list(stream)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == red != blue
    assert _text(after) == blue
    assert http.delete("/v1/prefixes/moving", headers=ADMIN).json()["deleted"]
    assert _post(http, _body("moving")).status_code == 404
    assert http.delete("/v1/prefixes/moving", headers=ADMIN).status_code == 404


def test_the_list_shows_tier_bytes_hits_and_cold_load_time_and_a_pin_holds(http):
    assert http.post("/v1/prefixes/fact-red/pin", headers=ADMIN).json()["pinned"]
    for colour in ("blue", "green", "yellow", "black"):
        assert _post(http, _body(f"fact-{colour}")).status_code == 200
    rows = _listed(http)
    assert rows["fact-red"]["tier"] == "host" and rows["fact-red"]["pinned"]
    assert {rows[f"fact-{colour}"]["tier"] for colour in ("yellow", "black")} == {"host"}
    assert {rows[f"fact-{colour}"]["tier"] for colour in ("blue", "green")} == {"store"}
    row = rows["fact-black"]
    assert row["bytes"] == BYTES and row["hits"] >= 1 and row["cold_load_seconds"] > 0 and row["last_used"] > 0
    assert http.delete("/v1/prefixes/fact-red/pin", headers=ADMIN).json() == {"id": "fact-red", "pinned": False}


def test_align_down_serves_whole_blocks_only(client, http, wanted, odd):
    for align, tokens in (("exact", 70), ("down", 64)):
        assert _load(http, "odd", odd, align=align).json()["num_tokens"] == tokens
        answer = _chat(client, "odd", QUESTION, max_tokens=6)
        assert _text(answer) == wanted["odd", tokens][0] and answer.usage.prefix_tokens == tokens
    assert _load(http, "odd", odd, align="up").status_code == 400
    http.delete("/v1/prefixes/odd", headers=ADMIN)


@pytest.mark.parametrize("field", ["config_hash", "tokenizer_hash", "rope", "weights_hash"])
def test_an_artifact_of_another_model_is_refused(http, oracle, store, digests, field):
    keys, values = oracle.load(store, digests["fact-red"])
    identity = dataclasses.replace(oracle.identity, **{field: "another"})
    before = _listed(http)
    answer = _load(http, "foreign", publish(store, keys, values, identity, 1).digest)
    assert answer.status_code == 422 and field in answer.json()["error"]["message"]
    assert {handle: row["tier"] for handle, row in _listed(http).items()} == {
        handle: row["tier"] for handle, row in before.items()
    }


def test_a_corrupt_artifact_is_refused_and_evicts_nothing(http, store, digests):
    torn, missing = "f" * 32, "e" * 32
    shutil.copytree(store.path(digests["fact-red"]), store.path(torn))
    manifest = store.read_json(f"{digests['fact-red']}/{MANIFEST_FILE}")
    assert set(manifest) == {field.name for field in dataclasses.fields(Manifest)}
    store.write_json(f"{torn}/{MANIFEST_FILE}", {**manifest, "digest": torn})
    before = {handle: row["tier"] for handle, row in _listed(http).items()}
    for tensors in (store.read_bytes(f"{torn}/{TENSOR_FILE}"), b"torn", b""):
        store.write_bytes(f"{torn}/{TENSOR_FILE}", tensors)
        assert _load(http, "torn", torn).status_code == 422
    assert _load(http, "torn", missing).status_code == 404
    assert _load(http, "torn", "../../etc").status_code == 422
    assert {handle: row["tier"] for handle, row in _listed(http).items()} == before
    assert _post(http, _body()).status_code == 200


def test_preempted_requests_end_with_the_text_they_have_when_alone(url, http):
    questions = [f"Tell me about {noun}." for noun in NOUNS[:8]]
    alone = [_text(_chat(_client(url), "fact-red", question, max_tokens=48)) for question in questions]
    before = _metric(http, "vllm:num_preemptions_total")

    async def ask():
        client = _client(url, kind=openai.AsyncOpenAI)
        return await asyncio.gather(*(_chat(client, "fact-red", question, max_tokens=48) for question in questions))

    assert [_text(answer) for answer in asyncio.run(ask())] == alone
    assert _metric(http, "vllm:num_preemptions_total") > before


def _metric(http, name, **labels):
    page = http.get("/metrics", headers=ADMIN).text
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def test_1000_requests_of_32_clients_get_each_its_own_fact(url, http, wanted, digests, odd):
    facts = {handle: wanted[handle, "fact"][0] for handle in digests}
    assert len(set(facts.values())) == len(facts)
    counts = {name: _metric(http, name, tier="host") for name in ("lpc_tier_evictions_total", "lpc_tier_misses_total")}
    evicted = _metric(http, "lpc_tier_evictions_total", tier="device")
    order = random.Random(0)
    allowed = {"key-of-warm": WARM, "key-of-cold": COLD, "key-of-grey": ("fact-black", "fact-white", *WARM)}
    plan = [(key, order.choice(allowed[key])) for key in (order.choice(list(allowed)) for _ in range(1000))]
    stop, failed = threading.Event(), []

    def unload_and_reload():
        try:
            _unload_and_reload()
        except BaseException as error:
            failed.append(error)
            raise

    def _unload_and_reload():
        with httpx.Client(base_url=url, timeout=300) as admin:
            while not stop.wait(0.5):
                assert _load(admin, "reloaded", odd).status_code == 200
                assert _post(admin, _body("reloaded")).status_code == 200
                assert admin.delete("/v1/prefixes/reloaded", headers=ADMIN).status_code == 200
                handle = order.choice(list(digests))
                assert _load(admin, handle, digests[handle]).status_code == 200

    async def clients():
        queue, wrong = list(plan), []
        by_key = {key: _client(url, key, openai.AsyncOpenAI) for key in allowed}

        async def one():
            while queue:
                key, handle = queue.pop()
                answer = await by_key[key].completions.create(
                    model=f"{NAME}:{handle}", prompt=TEXTS[0], max_tokens=4, temperature=0
                )
                if answer.choices[0].text != facts[handle]:
                    wrong.append((handle, answer.choices[0].text))

        await asyncio.gather(*(one() for _ in range(32)))
        return wrong

    reloader = threading.Thread(target=unload_and_reload)
    reloader.start()
    try:
        assert asyncio.run(clients()) == []
    finally:
        stop.set()
        reloader.join()
    assert failed == []
    for name, before in counts.items():
        assert _metric(http, name, tier="host") > before
    assert _metric(http, "lpc_tier_hits_total", tier="device") > 0
    assert _metric(http, "lpc_tier_evictions_total", tier="device") > evicted


def test_metrics_count_requests_tokens_and_time_to_first_token(http):
    labels = {"handle": "fact-red", "tenant": "warm"}
    names = ("lpc_requests_total", "lpc_prefix_tokens_total", "lpc_completion_tokens_total", "lpc_ttft_seconds_count")
    for is_streamed in (False, True):
        before = {name: _metric(http, name, **labels) for name in names}
        answer = _post(http, _body(stream=is_streamed), key="key-of-warm")
        assert not is_streamed or '"usage": {' not in answer.text, "the client has not asked for it"
        usage = _post(http, _body()).json()["usage"]  # of the same request, by the admin
        gained = {name: _metric(http, name, **labels) - before[name] for name in names}
        assert list(gained.values()) == [1, PREFIX_TOKENS, usage["completion_tokens"], int(is_streamed)]


def test_a_client_that_hangs_up_is_counted(url, http):
    """Streamed or not: what was generated for it was generated."""
    labels = {"handle": "fact-blue", "tenant": "cold"}
    for is_streamed in (True, False):
        before = _metric(http, "lpc_completion_tokens_total", **labels)
        body = _body("fact-blue", max_tokens=300, stream=is_streamed, min_tokens=300)
        headers = {"Authorization": "Bearer key-of-cold"}
        with httpx.Client(base_url=url, timeout=httpx.Timeout(300, read=300 if is_streamed else 3)) as client:
            if is_streamed:
                with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                    next(answer.iter_lines())
            else:
                with pytest.raises(httpx.ReadTimeout):
                    client.post("/v1/chat/completions", json=body, headers=headers)
        wait_until(lambda count=before: _metric(http, "lpc_completion_tokens_total", **labels) > count, 30)
        assert 0 < _metric(http, "lpc_completion_tokens_total", **labels) - before < 300


def test_usage_beside_each_event_is_that_of_its_own_prompt(http):
    body = {"model": f"{NAME}:fact-red", "prompt": ["\nThe gate is", "In"], "max_tokens": 3, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    lines = _post(http, body, path="/v1/completions").text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    own = [len(_ids(http, text)) for text in body["prompt"]]
    beside = {(chunk["choices"][0]["index"], chunk["usage"]["prompt_tokens"]) for chunk in chunks if chunk["choices"]}
    assert beside == {(0, own[0]), (1, own[1])}
    assert [chunk["usage"]["prompt_tokens"] for chunk in chunks if not chunk["choices"]] == [sum(own)]


def _ids(http, text):
    """The token ids of a prompt, as the server returns them."""
    body = {"model": NAME, "prompt": text, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    return _post(http, body, path="/v1/completions").json()["choices"][0]["prompt_token_ids"]


@pytest.mark.parametrize("handle", ["", ":fact-red"])
def test_a_prompt_that_is_cut_is_billed_as_it_was_cut(http, handle):
    body = _body(messages=[{"role": "user", "content": "gate " * 200}], truncate_prompt_tokens=20)
    usage = _post(http, {**body, "model": f"{NAME}{handle}"}).json()["usage"]
    assert usage["prompt_tokens"] == 20 and usage["prefix_tokens"] == (PREFIX_TOKENS if handle else 0)


def test_health_tells_of_the_engine_and_life_of_the_process(http):
    assert http.get("/health").json() == {"status": "ok"} == http.get("/live").json()


def test_handles_come_in_pages(http):
    first = http.get("/v1/models", params={"limit": 3}, headers=ADMIN).json()
    rest = http.get("/v1/models", params={"after": first["data"][-1]["id"]}, headers=ADMIN).json()
    whole = http.get("/v1/models", headers=ADMIN).json()
    assert first["has_more"] and not rest["has_more"] and first["data"] + rest["data"] == whole["data"]
    rows = http.get("/v1/prefixes", params={"after": "fact-green", "limit": 2}, headers=ADMIN).json()
    assert [row["id"] for row in rows["data"]] == ["fact-orange", "fact-purple"] and rows["has_more"]
    for limit in ("0", "-1", "x", "10001", ""):
        assert http.get("/v1/models", params={"limit": limit}, headers=ADMIN).status_code == 400


def test_refused_names_leave_no_series_behind(http):
    size = len(http.get("/metrics", headers=ADMIN).text)
    for number in range(60):
        assert _post(http, _body(f"no-such-{number}")).status_code == 404
        assert _post(http, {**_body(), "model": f"other-{number}"}).status_code == 404
    page = http.get("/metrics", headers=ADMIN).text
    assert "no-such" not in page and "other-" not in page and len(page) < size + 2000


def test_the_dashboard_asks_for_metrics_that_exist(http):
    dashboard = json.loads(DASHBOARD.read_text())
    page = http.get("/metrics", headers=ADMIN).text
    asked = {
        word.split("{")[0].strip("(),")
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for word in target["expr"].replace("(", " ").replace("[", " ").split()
        if word.startswith("lpc_")
    }
    assert len(asked) >= 10 and all(f"\n{name}{{" in page for name in asked)


def test_no_key_appears_in_any_log(running):
    _, logs = running
    texts = [path.read_text(errors="replace") for path in logs.rglob("*") if path.is_file()]
    assert texts and "".join(texts).count("chat/completions") > 0
    for key in ("the-admin-key", "key-of-warm", "key-of-cold", "key-of-grey", "key-of-slow", "wrong-key"):
        assert not any(key in text for text in texts)


def test_a_draining_server_ends_its_streams_and_refuses_new_requests(client, http):
    from ray import serve

    from lpc_ray.adapters.server.app import APP

    stream = iter(_chat(client, "fact-red", "Count to fifty.", max_tokens=64, stream=True))
    parts = [next(stream)]
    drained = serve.get_app_handle(APP).drain.remote()
    while http.get("/health").status_code == 200:
        pass
    refused = _post(http, _body())
    assert refused.status_code == 503 and "Retry-After" in refused.headers
    parts += list(stream)
    assert parts[-1].choices[0].finish_reason in ("stop", "length")
    drained.result(timeout_s=60)
