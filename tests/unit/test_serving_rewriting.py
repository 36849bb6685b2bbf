"""The sizing contract line by line, the rewriting of requests and answers, and the metrics page."""

import asyncio
import json
from dataclasses import asdict

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from lpc_ray.artifacts.manifest import Manifest, parse_manifest
from lpc_ray.errors import ArtifactError, ConfigError, DataError, PrefixNotFoundError, StorageError
from lpc_ray.records import PrefixRef
from lpc_ray.serving.joining import joined
from lpc_ray.serving.metrics import MOST_HANDLES, RequestMetrics, TierMetrics, TokenMetrics, merged
from lpc_ray.serving.refusal import Refusal, refusal_of
from lpc_ray.serving.residency import HostTier
from lpc_ray.serving.rewriting import Rewriting, check_request, json_body, sequences_of
from lpc_ray.serving.sizing import placeholder_of, served_tokens
from tests.tiny import tiny_identity, tiny_model

ONE = PrefixRef("a" * 32, "/tier/a", 32)
TWO = PrefixRef("b" * 32, "/tier/b", 5)
MIB = 1 << 20


def _manifest(num_layers, num_kv_heads, head_dim, num_tokens, dtype, kind="cartridge"):
    identity = tiny_identity(tiny_model(), num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim)
    return Manifest("a" * 32, identity, num_tokens, 1, dtype, kind)


def _num_bytes(*shape):
    return _manifest(*shape, "bfloat16").num_bytes


@pytest.mark.parametrize("kind", ["reasoncache", "kv_prefix", "cartridge", "skill"])
def test_resource_kinds_are_accepted(kind):
    manifest = _manifest(2, 2, 4, 32, "float32", kind)
    assert parse_manifest(json.dumps(asdict(manifest)), "here") == manifest


def test_another_kind_is_refused():
    with pytest.raises(ArtifactError, match="here: .* kind: got 'lora', wanted 'cartridge', 'reasoncache', .* 'skill'"):
        parse_manifest(json.dumps(asdict(_manifest(2, 2, 4, 32, "float32", "lora"))), "here")


def test_the_placeholder_is_0_unless_the_server_says_otherwise():
    assert Rewriting((TWO,)).token_ids([9]) == [0] * 5 + [9]
    assert Rewriting((TWO,), placeholder_id=7).token_ids([9]) == [7] * 5 + [9]


def test_32_placeholders_and_3_prompt_tokens_are_35():
    rewriting = Rewriting((ONE,))
    assert rewriting.prefix_tokens + 3 == 35 == len(rewriting.token_ids([5, 6, 7]))


def test_34_tokens_are_32_at_block_16_only_when_aligning_down_was_asked_for():
    assert served_tokens(34, 16) == 34
    assert served_tokens(34, 16, align="down") == 32
    with pytest.raises(ArtifactError, match="none of 15"):
        served_tokens(15, 16, align="down")
    with pytest.raises(ConfigError, match="up"):
        served_tokens(34, 16, align="up")


def test_the_fixture_of_2_layers_2_heads_32_tokens_and_head_dimension_4():
    assert _manifest(2, 2, 4, 32, "float32").num_bytes == 2 * 2 * 4 * 32 * 2 * 4 == 4096


def test_the_byte_formula_meets_the_published_sizes():
    tensors = _num_bytes(64, 8, 128, 1351)
    assert 0 <= 354_193_931 - tensors < 0.0002 * tensors  # the rest is the file's own header
    assert round(_num_bytes(28, 4, 128, 672) / MIB, 1) == 36.8
    assert round(_num_bytes(28, 4, 128, 3856) / MIB, 1) == 210.9
    assert _num_bytes(28, 8, 128, 1) == 112 * 1024


@pytest.mark.parametrize(
    "field",
    ["kv_transfer_params", "ec_transfer_params", "cache_salt", "vllm_xargs", "request_id", "priority"]
    + ["prompt_logprobs", "echo", "prompt_embeds", "use_beam_search", "suffix"],
)
def test_fields_that_reach_into_the_engine_are_refused(field):
    for value in (1, 0, "x", True):
        with pytest.raises(Refusal) as caught:
            check_request({"model": "m", "messages": [], field: value}, 64)
        assert caught.value.status == 400 and caught.value.param == field


@pytest.mark.parametrize("prompt", [[5, 0, 6], [[5], [0]], [0], "!!!"])
def test_a_prompt_may_hold_the_token_that_stands_for_prefixes(prompt):
    assert check_request({"prompt": prompt, "echo": False}, 64)["prompt"] == prompt


def test_the_placeholder_is_a_control_token_that_ends_no_reply():
    assert placeholder_of([0, 1, 2, 9], {2}, 10) == 9
    assert placeholder_of([0, 1, 2, 9], {9, 2}, 10) == 1
    assert placeholder_of([12, 2], {2}, 10) == placeholder_of([], (), 10) == 0


def test_bodies_that_are_no_request_are_refused():
    for raw, status in (
        (b'{"stop": ["\\ud800"]}', 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
        (b'{"n": NaN}', 400),
        (b"", 400),
    ):
        with pytest.raises(Refusal) as caught:
            json_body(raw)
        assert caught.value.status == status
    prompts = ([0.5, 5], [[5], ["6"]], [[5], "text"], [True], [None], 7, ["text"] * 129, [[5]] * 129)
    for body in ([], {"n": 17}, {"n": "2"}, {"n": True}, {"prompt_logprobs": False}, *({"prompt": p} for p in prompts)):
        with pytest.raises(Refusal) as caught:
            check_request(body, 64)
        assert caught.value.status == 400


def test_a_request_counts_as_the_replies_it_has_written():
    for prompt, n, wanted in (("x", None, 1), ([5, 6], 3, 3), (["x", "y"], 2, 4), ([[5], [6], [7]], None, 3)):
        assert sequences_of(check_request({"prompt": prompt, "n": n}, 64)) == wanted
    assert sequences_of({"messages": []}) == 1


def test_an_event_with_a_choice_tells_the_usage_of_its_own_prompt():
    rewriting = Rewriting((ONE,))
    usage = {"prompt_tokens": 36, "completion_tokens": 1, "total_tokens": 37}
    event = f"data: {json.dumps({'choices': [{'index': 1}], 'usage': usage})}\n\n"
    assert _usage(rewriting.correct_event(event, "m", prompts=2))["prompt_tokens"] == 4
    both = {"prompt_tokens": 72, "completion_tokens": 2, "total_tokens": 74}
    last = rewriting.correct_event(f"data: {json.dumps({'choices': [], 'usage': both})}\n\n", "m", prompts=2)
    assert _usage(last) == {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10, "prefix_tokens": 64}


def _usage(event):
    return json.loads(event.removeprefix("data: "))["usage"]


def test_prefixes_in_order_make_placeholders_and_parameters():
    rewriting = Rewriting((ONE, TWO))
    assert rewriting.prefix_tokens == 37 and len(rewriting.token_ids([1])) == 38
    assert [part["folder"] for part in rewriting.transfer_params["lpc"]["prefixes"]] == ["/tier/a", "/tier/b"]


def test_without_prefixes_nothing_changes():
    bare = Rewriting()
    assert bare.cache_salt is None and bare.transfer_params is None and bare.token_ids([1]) == [1]


def test_a_prompt_must_leave_room_for_the_prefix():
    Rewriting((ONE,)).check_room(60, 36, 128)
    for prompt, reply in ((60, 37), (96, None), (0, 1)):
        with pytest.raises(Refusal) as caught:
            Rewriting((ONE,)).check_room(prompt, reply, 128)
        assert caught.value.code == "context_length_exceeded"


def test_usage_counts_the_clients_own_tokens():
    usage = {
        "prompt_tokens": 40,
        "completion_tokens": 2,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 36},
    }
    answer = {"kv_transfer_params": {}, "prompt_token_ids": [0] * 32 + [5, 6], "choices": [{}], "usage": usage}
    corrected = Rewriting((ONE,)).correct(answer)
    assert corrected["usage"] == {
        "prompt_tokens": 8,
        "completion_tokens": 2,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 4},
        "prefix_tokens": 32,
    }
    assert corrected["prompt_token_ids"] == [5, 6] and "kv_transfer_params" not in corrected


def test_stream_events_are_corrected_and_renamed():
    rewriting = Rewriting((ONE,))
    event = 'data: {"model": "m", "choices": [], "usage": {"prompt_tokens": 40, "total_tokens": 42}}\n\n'
    chunk = json.loads(rewriting.correct_event(event, "m:h").removeprefix("data: "))
    assert chunk["model"] == "m:h" and chunk["usage"]["prompt_tokens"] == 8 and chunk["usage"]["prefix_tokens"] == 32
    assert rewriting.correct_event("data: [DONE]\n\n", "m:h") == "data: [DONE]\n\n"


def test_every_error_of_the_library_has_its_answer():
    wanted = {PrefixNotFoundError: 404, ArtifactError: 422, DataError: 400, ConfigError: 400, StorageError: 503}
    for error, status in wanted.items():
        assert refusal_of(error("why")).status == status and "why" in refusal_of(error("why")).message
    refusal = Refusal(429, "slow_down", "later", retry_after=3)
    assert refusal_of(refusal) is refusal and refusal.headers == {"Retry-After": "3"}


def test_the_metrics_page_tells_tiers_handles_and_replicas_apart(tmp_path):
    requests = RequestMetrics()
    requests.ended(("h",), "acme", 200)
    requests.first_event(("h",), "acme", 0.02)
    tokens = TokenMetrics(CollectorRegistry())
    tokens.count("h", "acme", prompt=3, prefix=32, completion=4)

    async def tier():
        return HostTier(tmp_path / "host", 100, None)

    device = {"hits": 7, "misses": 3, "evictions": 2, "loaded_bytes": 10, "load_seconds": 0.5}
    samples = [*TierMetrics(asyncio.run(tier()), device).collect(), *tokens.registry.collect()]
    page = merged(requests.registry, {"r1": samples, "r2": samples}).decode()
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert found["lpc_tier_hits_total", ("replica", "r2"), ("tier", "device")] == 7
    assert found["lpc_tier_evictions_total", ("replica", "r1"), ("tier", "device")] == 2
    assert found["lpc_tier_limit_bytes", ("replica", "r1"), ("tier", "host")] == 100
    assert found["lpc_prefix_tokens_total", ("handle", "h"), ("replica", "r2"), ("tenant", "acme")] == 32
    assert found["lpc_ttft_seconds_bucket", ("handle", "h"), ("le", "0.025"), ("tenant", "acme")] == 1


def test_series_of_handles_are_bounded(monkeypatch):
    monkeypatch.setattr("lpc_ray.serving.metrics.MOST_HANDLES", 3)
    assert MOST_HANDLES == 10_000
    requests = RequestMetrics()
    for number in range(50):
        requests.ended((f"h{number}", "stays"), "acme", 200)
    page = merged(requests.registry, {}).decode()
    counted = {line for line in page.splitlines() if line.startswith("lpc_requests_total")}
    assert 'lpc_requests_total{handle="stays",status="200",tenant="acme"} 50.0' in counted and len(counted) == 3


def test_events_that_wait_are_joined_and_the_first_is_not():
    async def events():
        for text in "abcdef":
            yield text
            if text == "a":
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        yield "g"

    async def read(open_streams):
        return [text async for text in joined(events(), lambda: open_streams)]

    assert asyncio.run(read(100)) == ["a", "bcdef", "g"]


def test_an_error_of_a_stream_comes_after_what_was_sent_before_it():
    async def events():
        yield "a"
        raise ValueError("why")

    async def read():
        found = []
        with pytest.raises(ValueError, match="why"):
            async for text in joined(events(), lambda: 1):
                found.append(text)
        return found

    assert asyncio.run(read()) == ["a"]


def test_a_stream_that_is_left_closes_its_source():
    closed = []

    async def events():
        try:
            yield "a"
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    async def read():
        stream = joined(events(), lambda: 1)
        assert await anext(stream) == "a"
        await stream.aclose()

    asyncio.run(read())
    assert closed == [True]
