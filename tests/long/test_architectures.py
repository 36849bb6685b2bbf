"""The exactness canary per architecture in real vLLM: tiny random checkpoints, fp32, head dim 64."""

import asyncio

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicCache

from lpc_ray.adapters.vllm.engine import EngineSettings, VLLMEngine
from lpc_ray.artifacts.handles import ARTIFACTS
from lpc_ray.artifacts.library import adopt
from lpc_ray.artifacts.store import publish
from lpc_ray.errors import ConfigError
from lpc_ray.model.identity import model_identity
from lpc_ray.prefix.attention import attach
from lpc_ray.prefix.initializers import first_k
from lpc_ray.prefix.initializers.base import Start
from lpc_ray.records import Ask, Decoding, PrefixRef
from lpc_ray.storage import Store
from tests.tiny import save_tiny, tiny_model

SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
WINDOW = {"sliding_window": 256}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
EXACT = [
    ("llama", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("mistral", {"sliding_window": None}),
    ("mistral", WINDOW),
    ("phi3", {}),
    ("gemma3_text", {**MIXED, **WINDOW}),
]
SOURCE = torch.randint(3, 128, (50,), generator=torch.Generator().manual_seed(5)).tolist()
PROMPT = [7, 90, 33, 12, 101]
NEW_TOKENS = 12


def _shape(model_type: str, changes: dict) -> dict:
    shape = {**SHAPE, **changes}
    if model_type in ("qwen2", "phi3"):  # their configs know no head dim: hidden size over heads
        shape["hidden_size"] = shape["num_attention_heads"] * shape["head_dim"]
    return shape


@torch.no_grad()
def _greedy(model, cache: DynamicCache, token_ids: list[int]) -> tuple[list[int], list[float]]:
    """Tokens and log-probs of transformers behind what the cache holds."""
    ids, tokens, logprobs = torch.tensor([token_ids]), [], []
    for _ in range(NEW_TOKENS):
        row = model(ids, past_key_values=cache).logits[0, -1].log_softmax(-1)
        tokens.append(int(row.argmax()))
        logprobs.append(row.max().item())
        ids = torch.tensor([tokens[-1:]])
        if tokens[-1] == 2:
            break
    return tokens, logprobs


def _cache_of(*parts) -> DynamicCache:
    """The keys and values of several prefixes, one after the other."""
    cache = DynamicCache()
    for part in parts:
        for layer, (keys, values) in enumerate(zip(part.keys, part.values, strict=True)):
            cache.update(keys.transpose(0, 1)[None], values.transpose(0, 1)[None], layer)
    return cache


async def _replies(folder: str, prefixes: list[PrefixRef]) -> list:
    settings = EngineSettings(
        model=folder, dtype="float32", max_model_len=256, kv_cache_gib=1, extra={"enforce_eager": True}
    )
    engine = await VLLMEngine(settings).start()
    try:
        decoding = Decoding(max_tokens=NEW_TOKENS)
        return await engine.generate(
            [Ask(token_ids=tuple(PROMPT), decoding=decoding, top_k=5, prefix=prefix) for prefix in prefixes]
        )
    finally:
        engine.stop()


@pytest.mark.parametrize(("model_type", "changes"), EXACT)
def test_first_k_at_step_0_is_the_text_in_the_prompt_and_a_composition_its_parts_in_vllm(tmp_path, model_type, changes):
    shape = _shape(model_type, changes)
    plain, attached = tiny_model(model_type, **shape), attach(tiny_model(model_type, **shape))
    folder = save_tiny(plain, tmp_path / "model")
    store, identity = Store(str(tmp_path / "store")), model_identity(folder)
    starts = [first_k.initialize(Start(attached, SOURCE, 50)), first_k.initialize(Start(attached, SOURCE[::-1], 33))]
    digests = [publish(store / ARTIFACTS, one.keys, one.values, identity, 1).digest for one in starts]
    joined = adopt(store, "+".join(digests), store, identity, tmp_path / "cache")
    prefixes = [
        PrefixRef(digest, store.path(f"{ARTIFACTS}/{digest}"), tokens)
        for digest, tokens in ((digests[0], 50), (joined.digest, 83))
    ]
    wanted = [_greedy(plain, DynamicCache(), [*SOURCE, *PROMPT]), _greedy(plain, _cache_of(*starts), PROMPT)]
    for reply, (tokens, logprobs) in zip(asyncio.run(_replies(folder, prefixes)), wanted, strict=True):
        assert list(reply.token_ids) == tokens
        np.testing.assert_allclose(reply.logprobs, logprobs, atol=1e-3)


def test_a_sliding_window_shorter_than_the_engines_context_is_refused(tmp_path):
    folder = save_tiny(tiny_model("gemma3_text", **{**SHAPE, **MIXED, "sliding_window": 128}), tmp_path / "model")
    with pytest.raises(ConfigError, match=r"vLLM cannot start with model .*sliding_window=128"):
        asyncio.run(_replies(folder, []))
