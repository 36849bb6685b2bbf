"""Tiny random models and scripted traces for tests."""

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lpc_ray.identity import ModelIdentity
from lpc_ray.records import TOP_K, TraceRow

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 97,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IDENTITY = ModelIdentity(
    model_id="tiny",
    revision=None,
    config_hash="c0",
    weights_hash="w0",
    tokenizer_hash="t0",
    chat_template_hash="h0",
    rope="{}",
    num_layers=3,
    num_kv_heads=2,
    head_dim=8,
    max_positions=256,
)


def tiny_model(model_type: str = "llama", seed: int = 0, **changes) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **{**SHAPE, **changes})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def rows(count: int, seed: int = 0, taught: bool = False, vocab: int = 97) -> list[TraceRow]:
    """Random tokenised traces of 6 to 20 tokens; the second half of each is the target."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        length = int(generator.integers(6, 21))
        is_target = np.arange(length) >= length // 2
        logprobs = np.sort(np.log(generator.dirichlet(np.ones(TOP_K + 5), int(is_target.sum()))), axis=1)[:, ::-1]
        ids = np.stack([generator.permutation(vocab)[:TOP_K] for _ in range(int(is_target.sum()))])
        found.append(
            TraceRow(
                id=f"{number:03d}",
                unit=f"{number:03d}",
                family="test",
                induction_seed=0,
                source_digest="s",
                teacher="t",
                token_ids=generator.integers(0, vocab, length).astype(np.int32),
                is_target=is_target,
                **(
                    {"topk_ids": ids.astype(np.int32), "topk_logprobs": logprobs[:, :TOP_K].astype(np.float32)}
                    if taught
                    else {}
                ),
            )
        )
    return found
