"""Which requests may share a block of the engine's cache, and what the connector refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc_ray.errors import DataError
from lpc_ray.records import PrefixRef
from lpc_ray.serving.contract import Part, cache_salt, placed, transfer_params
from lpc_ray.serving.rewriting import Rewriting

A, B = "a" * 32, "b" * 32
ONE, TWO = PrefixRef(A, "/tier/a", 32), PrefixRef(B, "/tier/b", 5)
BLOCK = 4

_PREFIXES = st.lists(st.builds(PrefixRef, st.sampled_from((A, B)), st.just("/tier"), st.integers(1, 9)), max_size=3)
_REQUESTS = st.tuples(
    _PREFIXES,
    st.none() | st.sampled_from(("acme", "zeta", f"{A}/4", "@", f"@lpc:{A}/4")),
    st.lists(st.integers(0, 1), min_size=1, max_size=16),  # 0 is the placeholder too
)


def _blocks(prefixes, tenant, prompt):
    """Of each whole block: what vLLM finds it by, and what its keys and values are made of."""
    rewriting = Rewriting(tuple(prefixes), tenant=tenant)
    ids = rewriting.token_ids(prompt)
    rows = [(prefix.digest, row) for prefix in prefixes for row in range(prefix.num_tokens)]
    made_of = [*rows, *(("text", token) for token in prompt)]
    for stop in range(BLOCK, len(ids) + 1, BLOCK):
        yield (rewriting.cache_salt, tuple(ids[:stop])), (tuple(made_of[:stop]), tenant)


@given(_REQUESTS, _REQUESTS)
def test_two_requests_that_share_a_block_have_equal_keys_and_values_in_it(first, second):
    of_first, of_second = dict(_blocks(*first)), dict(_blocks(*second))
    for key in of_first.keys() & of_second.keys():
        assert of_first[key] == of_second[key]


@given(_REQUESTS, _REQUESTS)
def test_tenants_that_do_not_share_have_no_block_in_common(first, second):
    if first[1] != second[1]:
        assert not dict(_blocks(*first)).keys() & dict(_blocks(*second)).keys()


def test_the_salt_names_digest_and_served_length_of_each_prefix_in_order():
    assert cache_salt([ONE, TWO]) == f"lpc:{A}/32+{B}/5" != cache_salt([TWO, ONE])
    assert cache_salt([ONE], "acme") == f"lpc:{A}/32@acme"
    assert cache_salt([PrefixRef(A, "/tier/a", 16)]) != cache_salt([ONE])
    assert cache_salt([], "acme") == "lpc:@acme" and cache_salt([]) is None


@given(_REQUESTS)
def test_the_connector_reads_what_the_server_writes(request):
    prefixes, tenant, prompt = request
    rewriting = Rewriting(tuple(prefixes), tenant=tenant)
    parts = placed(rewriting.transfer_params, rewriting.cache_salt, len(rewriting.token_ids(prompt)))
    assert [(part.digest, part.num_tokens) for part in parts] == [(one.digest, one.num_tokens) for one in prefixes]
    assert [part.offset for part in parts] == [
        sum(one.num_tokens for one in prefixes[:n]) for n in range(len(prefixes))
    ]


def test_parts_stand_one_after_the_other():
    assert placed(transfer_params([ONE, TWO]), cache_salt([ONE, TWO]), 38) == (
        Part(A, "/tier/a", 32, 0),
        Part(B, "/tier/b", 5, 32),
    )
    assert placed(None, None, 1) == placed({"prompt_token_ids": [5]}, "a salt of another", 1) == ()


def _with(**fields):
    return {"lpc": {"prefixes": [{**transfer_params([ONE])["lpc"]["prefixes"][0], **fields}]}}


@pytest.mark.parametrize(
    ("params", "salt", "tokens", "why"),
    [
        (transfer_params([ONE]), None, 40, "got cache salt None"),
        (transfer_params([ONE]), cache_salt([PrefixRef(A, "/tier/a", 16)]), 40, "wanted 'lpc:"),
        (transfer_params([ONE]), cache_salt([], "acme"), 40, "got cache salt"),
        (transfer_params([ONE]), f"x{cache_salt([ONE])}", 40, "got cache salt"),
        (None, cache_salt([ONE]), 40, "got cache salt"),
        (transfer_params([ONE]), cache_salt([ONE]), 32, "got a prompt of 32 tokens"),
        (transfer_params([ONE]), cache_salt([ONE]), 1, "got a prompt of 1 tokens"),
        ({"lpc": []}, None, 40, "a list of 1 to 8"),
        ({"lpc": {}}, None, 40, "a list of 1 to 8"),
        ({"lpc": {"prefixes": []}}, None, 40, "a list of 1 to 8"),
        ({"lpc": {"prefixes": [None] * 9}}, None, 40, "a list of 1 to 8"),
        ({"lpc": {"prefixes": [None]}}, None, 40, r"prefixes\[0\]"),
        (_with(num_tokens=True), None, 40, r"prefixes\[0\]"),
        (_with(num_tokens=0), None, 40, r"prefixes\[0\]"),
        (_with(num_tokens=32.0), None, 40, r"prefixes\[0\]"),
        (_with(folder=None), None, 40, r"prefixes\[0\]"),
        (_with(digest=f"{A}/32+{B}"), None, 40, r"prefixes\[0\]"),
        (_with(more=1), None, 40, r"prefixes\[0\]"),
    ],
)
def test_a_request_that_breaks_the_contract_is_refused(params, salt, tokens, why):
    with pytest.raises(DataError, match=why):
        placed(params, salt, tokens)
