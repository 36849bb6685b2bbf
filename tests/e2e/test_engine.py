"""The exactness canary and the seam between artifact and engine, on SmolLM2 in real vLLM, fp32."""

import asyncio
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DynamicCache

from lpc_ray.adapters.vllm.engine import EngineSettings, VLLMEngine
from lpc_ray.artifacts.store import MANIFEST_FILE, publish
from lpc_ray.errors import ArtifactError, ConfigError, PrefixNotFoundError
from lpc_ray.model.embedded import fetch_embedded_model
from lpc_ray.model.identity import model_identity
from lpc_ray.prefix.attention import attach
from lpc_ray.prefix.initializers import first_k
from lpc_ray.prefix.initializers.base import Start
from lpc_ray.records import Ask, Decoding, PrefixRef
from lpc_ray.storage import Store

HANDBOOK = Path(__file__).resolve().parents[2] / "data" / "demo" / "handbook.md"
NEW_TOKENS = 20


@pytest.fixture(scope="module")
def model_folder():
    return str(fetch_embedded_model())


@pytest.fixture(scope="module")
def reference(model_folder):
    """transformers in fp32, on its own attention."""
    return AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def source_ids(model_folder):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    return tokenizer.encode(HANDBOOK.read_text(), add_special_tokens=False)


@pytest.fixture(scope="module")
def question(model_folder):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    messages = [{"role": "user", "content": "When did the station open and where does it stand?"}]
    return tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


@pytest.fixture(scope="module")
def prefixes(model_folder, source_ids, tmp_path_factory):
    """P → a first_k prefix of the handbook, published; "other": one of its end."""
    store = Store(str(tmp_path_factory.mktemp("artifacts")))
    backbone = attach(AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32))
    found = {}
    for name, ids in ((64, source_ids[:64]), (50, source_ids[:50]), ("other", source_ids[-64:])):
        start = first_k.initialize(Start(backbone, ids, len(ids)))
        manifest = publish(store, start.keys, start.values, model_identity(model_folder), 1)
        found[name] = PrefixRef(manifest.digest, store.path(manifest.digest), len(ids))
    return found


@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.close()


@pytest.fixture(scope="module")
def engine(model_folder, loop):
    settings = EngineSettings(
        model=model_folder, dtype="float32", max_model_len=1024, kv_cache_gib=1, extra={"enforce_eager": True}
    )
    engine = VLLMEngine(settings)
    loop.run_until_complete(engine.start())
    yield engine
    engine.stop()


@torch.no_grad()
def _greedy(model, prefix_ids, prompt_ids):
    """Tokens and log-probs of transformers with the prefix's text in the prompt."""
    cache, ids = DynamicCache(), torch.tensor([[*prefix_ids, *prompt_ids]])
    tokens, logprobs = [], []
    for _ in range(NEW_TOKENS):
        logits = model(ids, past_key_values=cache).logits[0, -1]
        token = int(logits.argmax())
        tokens.append(token)
        logprobs.append(torch.log_softmax(logits, -1)[token].item())
        if token == 2:
            break
        ids = torch.tensor([[token]])
    return tokens, logprobs


def _ask(ids, prefix=None):
    return Ask(token_ids=tuple(ids), decoding=Decoding(max_tokens=NEW_TOKENS), top_k=5, prefix=prefix)


@pytest.mark.parametrize("size", [64, 50])
def test_first_k_at_step_0_is_the_same_text_in_the_prompt(
    engine, loop, reference, prefixes, source_ids, question, size
):
    tokens, logprobs = _greedy(reference, source_ids[:size], question)
    asks = [_ask([*source_ids[:size], *question]), _ask(question, prefixes[size]), _ask(question, prefixes[size])]
    for reply in loop.run_until_complete(engine.generate(asks)):
        assert list(reply.token_ids) == tokens
        np.testing.assert_allclose(reply.logprobs, logprobs, atol=1e-3)
        np.testing.assert_array_equal(reply.topk_ids[:, 0], reply.token_ids)


def test_alternating_prefixes_answer_each_from_its_own(engine, loop, reference, prefixes, source_ids, question):
    wanted = {
        64: _greedy(reference, source_ids[:64], question)[0],
        "other": _greedy(reference, source_ids[-64:], question)[0],
    }
    assert wanted[64] != wanted["other"]
    order = [64, "other"] * 8
    replies = loop.run_until_complete(engine.generate([_ask(question, prefixes[name]) for name in order]))
    assert [list(reply.token_ids) for reply in replies] == [wanted[name] for name in order]
    for name in order:
        [reply] = loop.run_until_complete(engine.generate([_ask(question, prefixes[name])]))
        assert list(reply.token_ids) == wanted[name]


def test_the_prefix_is_never_counted_as_prompt(engine, loop, prefixes, question):
    [reply] = loop.run_until_complete(engine.generate([_ask(question, prefixes[64])]))
    assert reply.num_prompt_tokens == len(question)


def test_seeded_requests_that_do_not_fit_one_batch_repeat_and_leave_the_engine_well(engine, loop, source_ids):
    """On the CPU vLLM 0.29 dies when it computes a seeded request's prompt in parts."""
    decoding = Decoding(temperature=0.6, max_tokens=4, seed=7)
    asks = [Ask(token_ids=tuple(source_ids[start : start + 700]), decoding=decoding) for start in range(8)]
    first, second = (loop.run_until_complete(engine.generate(asks)) for _ in range(2))
    assert [reply.token_ids for reply in first] == [reply.token_ids for reply in second]
    assert not engine.is_dead()


def test_unfit_prefixes_are_refused_before_the_engine_sees_them(engine, loop, prefixes, question, tmp_path):
    fit = prefixes[64]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    manifest = json.loads((Path(fit.folder) / MANIFEST_FILE).read_text())
    manifest["identity"]["config_hash"] = "another"
    (foreign / MANIFEST_FILE).write_text(json.dumps(manifest))
    for prefix, error, message in (
        (dataclasses.replace(fit, folder=str(foreign)), ArtifactError, "config_hash is another"),
        (dataclasses.replace(fit, folder=str(tmp_path / "none")), PrefixNotFoundError, "holds no LPC"),
        (dataclasses.replace(fit, num_tokens=63), ArtifactError, "wanted .* with 63"),
        (dataclasses.replace(fit, digest="0" * 32), ArtifactError, "wanted 0000"),
    ):
        with pytest.raises(error, match=message):
            loop.run_until_complete(engine.generate([_ask(question, prefix)]))
    [reply] = loop.run_until_complete(engine.generate([_ask(question, fit)]))
    assert reply.token_ids


def test_an_ask_that_does_not_fit_is_told_and_the_others_are_answered(engine, loop, prefixes, question):
    fit, room = prefixes[64], 1024 - NEW_TOKENS
    asks = [
        _ask([5] * (room - 64), fit),
        _ask([5] * (room - 63), fit),
        _ask(question, fit),
        _ask([5] * room),
        _ask([5] * (room + 1)),
    ]
    replies = loop.run_until_complete(engine.generate(asks))
    assert [reply.is_too_long for reply in replies] == [False, True, False, False, True]
    assert [bool(reply.token_ids) for reply in replies] == [True, False, True, True, False]
    assert replies[4].num_prompt_tokens == room + 1 and replies[4].topk_ids.shape == (0, 5)


def test_corrupt_tensors_fail_the_request_and_leave_the_engine_well(engine, loop, prefixes, question, tmp_path):
    folder = tmp_path / "torn"
    folder.mkdir()
    manifest = json.loads((Path(prefixes[64].folder) / MANIFEST_FILE).read_text())
    manifest["digest"] = "f" * 32
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    (folder / "prefix.safetensors").write_bytes(b"torn")
    with pytest.raises(ArtifactError, match="torn"):
        loop.run_until_complete(engine.generate([_ask(question, PrefixRef("f" * 32, str(folder), 64))]))
    [reply] = loop.run_until_complete(engine.generate([_ask(question, prefixes[64])]))
    assert reply.token_ids


def test_a_prefix_without_a_connector_is_refused(model_folder, loop, prefixes, question):
    bare = VLLMEngine(EngineSettings(model=model_folder, with_connector=False))
    with pytest.raises(ConfigError, match="no KV connector"):
        loop.run_until_complete(bare.generate([_ask(question, prefixes[64])]))
