"""The connector against clients that reach vLLM itself, past every check of ours: SmolLM2 in real vLLM, fp32."""

import asyncio
import uuid

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DynamicCache
from vllm import SamplingParams, TokensPrompt

from lpc_ray.adapters.vllm.engine import EngineSettings, VLLMEngine
from lpc_ray.artifacts.store import publish
from lpc_ray.model.embedded import fetch_embedded_model
from lpc_ray.model.identity import model_identity
from lpc_ray.prefix.attention import attach
from lpc_ray.prefix.initializers import first_k
from lpc_ray.prefix.initializers.base import Start
from lpc_ray.records import PrefixRef
from lpc_ray.serving.contract import cache_salt, transfer_params
from lpc_ray.serving.rewriting import Rewriting
from lpc_ray.storage import Store

TEXT = "The harbour of Lindal has four piers. The ferry to Orm leaves from the north pier at a quarter past seven. " * 3
BLOCK = 32


class Served:
    """An engine, the backbone it is compared with, and prefixes of `TEXT` by length."""

    def __init__(self, folder):
        model = str(fetch_embedded_model())
        self.loop, self._store = asyncio.new_event_loop(), Store(str(folder))
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.ids = self.tokenizer.encode(TEXT, add_special_tokens=False)
        self.backbone = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        backbone = attach(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32))
        start = first_k.initialize(Start(backbone, self.ids, 50))
        manifest = publish(self._store, start.keys, start.values, model_identity(model), 1)
        self.digest, self.folder = manifest.digest, self._store.path(manifest.digest)
        self._engine = VLLMEngine(
            EngineSettings(
                model=model, dtype="float32", max_model_len=512, kv_cache_gib=1, extra={"enforce_eager": True}
            )
        )
        self.loop.run_until_complete(self._engine.start())

    def prefix(self, num_tokens):
        return PrefixRef(self.digest, self.folder, num_tokens)

    def ask(self, ids, params, salt=None, **sampling):
        """Finish reason, token and log-prob of one greedy token."""
        return self.loop.run_until_complete(self.asking(ids, params, salt, **sampling))

    async def asking(self, ids, params, salt=None, **sampling):
        prompt = TokensPrompt(prompt_token_ids=list(ids), **({} if salt is None else {"cache_salt": salt}))
        settings = SamplingParams(
            temperature=0,
            max_tokens=1,
            logprobs=0,
            extra_args=None if params is None else {"kv_transfer_params": params},
            **sampling,
        )
        async for output in self._engine._engine.generate(prompt, settings, request_id=uuid.uuid4().hex):
            final = output.outputs[0]
        token = final.token_ids[0] if final.token_ids else None
        return final.finish_reason, token, final.logprobs[0][token].logprob if final.logprobs else None

    @torch.no_grad()
    def expected(self, num_tokens, prompt):
        """Log-probs of the next token, with the prefix's own text before the prompt."""
        logits = self.backbone(torch.tensor([[*self.ids[:num_tokens], *prompt]]), past_key_values=DynamicCache()).logits
        return torch.log_softmax(logits[0, -1], -1)

    def check(self, prefix, prompt, tenant=None):
        rewriting = Rewriting((prefix,), tenant=tenant)
        reason, token, logprob = self.ask(rewriting.token_ids(prompt), rewriting.transfer_params, rewriting.cache_salt)
        expected = self.expected(prefix.num_tokens, prompt)
        assert reason in ("length", "stop") and token == int(expected.argmax())
        assert logprob == pytest.approx(expected[token].item(), abs=1e-3)

    def stop(self):
        self._engine.stop()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.1))
        self.loop.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("artifacts"))
    yield served
    served.stop()


def test_one_digest_at_two_lengths_and_a_prompt_of_placeholders(served):
    """Each shares its ids with the one before, and none its blocks."""
    question = served.tokenizer.encode("When does the ferry to Orm leave? It leaves at", add_special_tokens=False)
    assert len(served.ids) >= 50 and 2 * BLOCK > 50
    for length, prompt in (
        (32, [0] * 40 + question),
        (50, [0] * 22 + question),
        (32, [0] * 40 + question),
        (50, question),
    ):
        served.check(served.prefix(length), prompt)


def test_two_tenants_with_one_prefix_get_the_same_answer(served):
    question = served.tokenizer.encode("How many piers are there? There are", add_special_tokens=False)
    for tenant in ("acme", "zeta", None):
        served.check(served.prefix(50), question, tenant)


BROKEN = {
    "a prompt shorter than the prefix": (lambda one: ([0] * 5, transfer_params([one]), cache_salt([one]))),
    "a prompt as long as the prefix": (lambda one: ([0] * 50, transfer_params([one]), cache_salt([one]))),
    "a prompt of one token": (lambda one: ([0], transfer_params([one]), cache_salt([one]))),
    "no salt": (lambda one: ([0] * 60, transfer_params([one]), None)),
    "the salt of another length": (
        lambda one: ([0] * 60, transfer_params([one]), cache_salt([PrefixRef(one.digest, one.folder, 32)]))
    ),
    "a salt without prefixes": (lambda one: ([0] * 60, None, cache_salt([one]))),
    "parameters that are no object": (lambda one: ([0] * 60, {"lpc": [1]}, None)),
    "no list of prefixes": (lambda one: ([0] * 60, {"lpc": {"prefixes": 5}}, None)),
    "a folder that is not there": (
        lambda one: (
            [0] * 60,
            transfer_params([PrefixRef(one.digest, "/nowhere", 50)]),
            cache_salt([PrefixRef(one.digest, "/nowhere", 50)], "alone"),
        )
    ),
    "more rows than there are": (
        lambda one: (
            [0] * 90,
            transfer_params([PrefixRef(one.digest, one.folder, 80)]),
            cache_salt([PrefixRef(one.digest, one.folder, 80)]),
        )
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_request_ends_alone(served, case):
    question = served.tokenizer.encode("Where does the ferry leave?", add_special_tokens=False)
    ids, params, salt = BROKEN[case](served.prefix(50))
    rewriting = Rewriting((served.prefix(50),))

    async def together():
        good = served.asking(rewriting.token_ids(question), rewriting.transfer_params, rewriting.cache_salt)
        return await asyncio.gather(good, *(served.asking(ids, params, salt) for _ in range(3)), good_again())

    async def good_again():
        return await served.asking(rewriting.token_ids(question), rewriting.transfer_params, rewriting.cache_salt)

    first, *broken, again = served.loop.run_until_complete(asyncio.wait_for(together(), 60))
    assert [reason for reason, *_ in broken] == ["error"] * 3
    assert {first[0], again[0]} <= {"length", "stop"}
    served.check(served.prefix(50), question)


def test_prompt_logprobs_behind_a_prefix_are_refused(served):
    rewriting = Rewriting((served.prefix(50),))
    reason, *_ = served.ask(
        rewriting.token_ids([5, 6]), rewriting.transfer_params, rewriting.cache_salt, prompt_logprobs=1
    )
    assert reason == "error"
