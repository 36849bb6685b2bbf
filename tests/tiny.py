"""Tiny random models and scripted traces for tests."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from lpc_ray.model.identity import ModelIdentity
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


def tiny_identity(model: PreTrainedModel, **changes) -> ModelIdentity:
    """What `model_identity` would say of a tiny model, which has no tokenizer and no file."""
    config = model.config.get_text_config()
    fields = {
        "model_id": f"tiny-{config.model_type}",
        "revision": None,
        "config_hash": "c0",
        "weights_hash": "w0",
        "tokenizer_hash": "t0",
        "chat_template_hash": "h0",
        "rope": json.dumps(config.rope_parameters, sort_keys=True, default=str),
        "num_layers": config.num_hidden_layers,
        "num_kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_positions": config.max_position_embeddings,
    }
    return ModelIdentity(**{**fields, **changes})


def save_tiny(model: PreTrainedModel, folder: Path) -> str:
    """The model as a folder that `from_pretrained` and vLLM read, with a tokenizer of the words t0, t1, …"""
    model.save_pretrained(folder)
    vocabulary = {f"t{number}": number for number in range(model.config.get_text_config().vocab_size)}
    words = Tokenizer(WordLevel(vocabulary, unk_token="t0"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0", eos_token="t2").save_pretrained(folder)
    return str(folder)


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


def taught_rows(count: int, seed: int = 0, vocab: int = 97) -> list[TraceRow]:
    """`rows` after random teacher prompts, with the top-k that the tiny model itself gives there, in float64."""
    model = tiny_model(vocab_size=vocab).double()
    generator = np.random.default_rng(seed)
    found = []
    for row in rows(count, seed, vocab=vocab):
        prompt = generator.integers(0, vocab, int(generator.integers(8, 15))).astype(np.int32)
        ids = torch.from_numpy(np.concatenate([prompt, row.token_ids[row.is_target]]).astype(np.int64))
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids[None]).logits[0, len(prompt) - 1 : -1], -1)
        best = logprobs.topk(TOP_K, dim=-1)
        found.append(
            replace(
                row,
                teacher_prompt=prompt,
                topk_ids=best.indices.numpy().astype(np.int32),
                topk_logprobs=best.values.numpy().astype(np.float32),
            )
        )
    return found
