"""The sizing contract line by line, the rewriting of requests and answers, and the metrics page."""

import asyncio
import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lpc_ray.errors import ArtifactError, ConfigError, DataError, PrefixNotFoundError, StorageError
from lpc_ray.records import PrefixRef
from lpc_ray.serving import sizing
from lpc_ray.serving.metrics import RequestMetrics, TierMetrics, merged
from lpc_ray.serving.refusal import Refusal, refusal_of
from lpc_ray.serving.residency import HostTier
from lpc_ray.serving.rewriting import MAX_BODY_BYTES, Rewriting, check_request, json_body, sequences_of, usage_of

ONE = PrefixRef("a" * 32, "/tier/a", 32)
TWO = PrefixRef("b" * 32, "/tier/b", 5)
MIB = 1 << 20


@pytest.mark.parametrize("kind", ["reasoncache", "kv_prefix", "cartridge", "skill"])
def test_resource_kinds_are_accepted(kind):
    assert sizing.check_kind(kind) == kind


def test_another_kind_is_refused():
    with pytest.raises(ArtifactError, match="lora"):
        sizing.check_kind("lora")


def test_the_placeholder_is_0_unless_the_server_says_otherwise():
    assert sizing.RequestPlan(2, 1).token_ids([9]) == [0, 0, 9]
    assert sizing.RequestPlan(2, 1, placeholder_id=7).token_ids([9]) == [7, 7, 9]
    assert Rewriting((TWO,), placeholder_id=7).token_ids([9]) == [7] * 5 + [9]


def test_32_placeholders_and_3_prompt_tokens_are_35():
    plan = sizing.RequestPlan(32, 3)
    assert plan.total_tokens == 35 == len(Rewriting((ONE,)).token_ids([5, 6, 7]))


def test_34_tokens_are_32_at_block_16_only_when_aligning_down_was_asked_for():
    assert sizing.served_tokens(34, 16) == 34
    assert sizing.served_tokens(34, 16, align="down") == 32
    with pytest.raises(ArtifactError, match="none of 15"):
        sizing.served_tokens(15, 16, align="down")
    with pytest.raises(ConfigError, match="up"):
        sizing.served_tokens(34, 16, align="up")


def test_the_fixture_of_2_layers_2_heads_32_tokens_and_head_dimension_4():
    assert sizing.prefix_bytes(2, 2, 4, 4, 32) == 2 * 2 * 4 * 32 * 2 * 4 == 4096


def test_the_byte_formula_meets_the_published_sizes():
    tensors = sizing.prefix_bytes(64, 8, 128, 2, 1351)
    assert 0 <= 354_193_931 - tensors < 0.0002 * tensors  # the rest is the file's own header
    assert round(sizing.prefix_bytes(28, 4, 128, 2, 672) / MIB, 1) == 36.8
    assert round(sizing.prefix_bytes(28, 4, 128, 2, 3856) / MIB, 1) == 210.9
    assert sizing.bytes_per_token(28, 8, 128, 2) == 112 * 1024


@pytest.mark.parametrize(
    "field",
    ["kv_transfer_params", "ec_transfer_params", "cache_salt", "vllm_xargs", "request_id", "priority"]
    + ["prompt_logprobs", "echo", "prompt_embeds", "use_beam_search", "suffix"],
)
def test_fields_that_reach_into_the_engine_are_refused(field):
    for value in (1, 0, "x", True):
        with pytest.raises(Refusal) as caught:
            check_request({"model": "m", "messages": [], field: value})
        assert caught.value.status == 400 and caught.value.param == field


@pytest.mark.parametrize("prompt", [[5, 0, 6], [[5], [0]], [0]])
def test_placeholders_in_a_token_prompt_are_refused(prompt):
    with pytest.raises(Refusal, match="token 0"):
        check_request({"prompt": prompt})
    assert check_request({"prompt": prompt}, placeholder_id=3)
    assert check_request({"prompt": "0 0 0", "echo": False})


def test_bodies_that_are_no_request_are_refused():
    for raw, status in (
        (b'{"stop": ["\\ud800"]}', 400),
        (b"{", 400),
        (b'{"model": "a", "model": "b"}', 400),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
        (b" " * (MAX_BODY_BYTES + 1), 413),
    ):
        with pytest.raises(Refusal) as caught:
            json_body(raw)
        assert caught.value.status == status
    prompts = ([0.5, 5], [[5], ["6"]], [[5], "text"], [True], [None], 7, ["text"] * 129, [[5]] * 129)
    for body in ([], {"n": 17}, {"n": "2"}, {"n": True}, {"prompt_logprobs": False}, *({"prompt": p} for p in prompts)):
        with pytest.raises(Refusal) as caught:
            check_request(body)
        assert caught.value.status == 400


def test_a_request_counts_as_the_replies_it_has_written():
    for prompt, n, wanted in (("x", None, 1), ([5, 6], 3, 3), (["x", "y"], 2, 4), ([[5], [6], [7]], None, 3)):
        assert sequences_of(check_request({"prompt": prompt, "n": n})) == wanted
    assert sequences_of({"messages": []}) == 1


def test_the_usage_of_a_stream_is_told_by_its_event_without_choices():
    rewriting = Rewriting((PrefixRef("d", "/d", 32),))
    usage = {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42}
    last = rewriting.correct_event(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n", "m")
    assert usage_of(last) == {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10, "prefix_tokens": 32}
    assert usage_of(rewriting.correct_event('data: {"choices": [{"delta": {}}]}\n\n', "m")) is None
    assert usage_of("data: [DONE]\n\n") is None


def test_prefixes_in_order_make_salt_placeholders_and_parameters():
    rewriting = Rewriting((ONE, TWO))
    assert rewriting.prefix_tokens == 37 and len(rewriting.token_ids([1])) == 38
    assert rewriting.cache_salt == "a" * 32 + "+" + "b" * 32 != Rewriting((TWO, ONE)).cache_salt
    assert [part["folder"] for part in rewriting.transfer_params["lpc"]["prefixes"]] == ["/tier/a", "/tier/b"]
    assert Rewriting((ONE,), tenant_salt="acme").cache_salt == "a" * 32 + "+tenant:acme"


def test_without_prefixes_nothing_changes():
    bare = Rewriting()
    assert bare.cache_salt is None and bare.transfer_params is None and bare.token_ids([1]) == [1]
    assert Rewriting(tenant_salt="acme").cache_salt == "tenant:acme"


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
    requests.requests.labels("h", "acme", "200").inc()
    requests.count_usage({"prompt_tokens": 3, "prefix_tokens": 32, "completion_tokens": 4}, "h", "acme")
    requests.ttft.labels("h", "acme").observe(0.02)

    async def tier():
        return HostTier(tmp_path / "host", 100, None)

    device = {"hits": 7, "misses": 3, "evictions": 2, "loaded_bytes": 10, "load_seconds": 0.5}
    samples = list(TierMetrics(asyncio.run(tier()), device).collect())
    page = merged(requests.registry, {"r1": samples, "r2": samples}).decode()
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert found["lpc_tier_hits_total", ("replica", "r2"), ("tier", "device")] == 7
    assert found["lpc_tier_evictions_total", ("replica", "r1"), ("tier", "device")] == 2
    assert found["lpc_tier_limit_bytes", ("replica", "r1"), ("tier", "host")] == 100
    assert found["lpc_prefix_tokens_total", ("handle", "h"), ("tenant", "acme")] == 32
    assert found["lpc_ttft_seconds_bucket", ("handle", "h"), ("le", "0.025"), ("tenant", "acme")] == 1
