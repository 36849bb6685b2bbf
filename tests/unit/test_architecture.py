"""The exactness canary per architecture, in transformers; and what cannot be exact is refused by name."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lpc_ray.errors import ConfigError
from lpc_ray.model.architecture import check_architecture
from lpc_ray.model.embedded import EMBEDDED_MODEL, resolve_model
from lpc_ray.prefix.attention import attach, prefix_arguments
from lpc_ray.prefix.initializers import first_k
from lpc_ray.prefix.initializers.base import Start
from tests.tiny import tiny_model

MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 64}
EXACT = {"llama": {}, "qwen2": {}, "qwen3": {}, "mistral": {}, "gemma3_text": MIXED, "phi3": {}}
SOURCE = torch.randint(3, 97, (21,), generator=torch.Generator().manual_seed(5)).tolist()
PROMPT = [7, 90, 33, 12]


def _step(logits: torch.Tensor) -> tuple[int, torch.Tensor]:
    logprobs = logits[0, -1].log_softmax(-1)
    return int(logprobs.argmax()), logprobs


@pytest.mark.parametrize("model_type", EXACT)
@torch.no_grad()
def test_first_k_at_step_0_is_the_same_text_in_the_prompt(model_type):
    changes = {"initializer_range": 0.2, **EXACT[model_type]}
    plain, ours = tiny_model(model_type, **changes), attach(tiny_model(model_type, **changes))
    start = first_k.initialize(Start(ours, SOURCE, len(SOURCE)))
    text, prompt = [*SOURCE, *PROMPT], list(PROMPT)
    for _ in range(8):
        wanted, wanted_logprobs = _step(plain(torch.tensor([text])).logits)
        ids = torch.tensor([prompt])
        positions = torch.arange(len(prompt))[None] + len(SOURCE)
        arguments = prefix_arguments(start.keys, start.values, torch.zeros_like(ids))
        got, logprobs = _step(ours(ids, position_ids=positions, use_cache=False, **arguments).logits)
        torch.testing.assert_close(logprobs, wanted_logprobs, atol=1e-4, rtol=0)
        assert got == wanted
        text.append(wanted)
        prompt.append(got)
    assert len(set(text[-8:])) > 1


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("deepseek_v2", {}, "multi-head latent attention"),
        ("deepseek_v3", {}, "multi-head latent attention"),
        ("gemma3n_text", {}, "layers that share keys and values"),
        ("qwen3_next", {}, "linear_attention layers"),
        ("llama4_text", {}, "chunked_attention layers"),
        ("gemma4_text", {}, "layers of different shapes"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "bidirectional attention"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic RoPE"),
        (
            "phi3",
            {
                "hidden_size": 32,
                "num_attention_heads": 4,
                "original_max_position_embeddings": 64,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 4,
                    "long_factor": [2.0] * 4,
                    "original_max_position_embeddings": 64,
                },
            },
            "longrope RoPE",
        ),
    ],
)
def test_an_architecture_that_cannot_be_exact_is_refused_by_name(model_type, changes, reason):
    config = AutoConfig.for_model(model_type, **changes).get_text_config()
    with pytest.raises(ConfigError, match=f"model {config.model_type}: .*{reason}"):
        check_architecture(config)


def test_a_model_with_attention_sinks_is_refused_when_it_is_tried():
    with pytest.raises(ConfigError, match="model gpt_oss: learned attention sinks"):
        attach(tiny_model("gpt_oss", num_local_experts=2, num_experts_per_tok=1))


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("nemotron", "logits are .* away from those behind the tokens themselves"),  # its attention asks nobody
        ("diffllama", "logits are .* away"),
        ("bert", "logits are .* away"),  # sees what comes after
        ("roberta", "logits are .* away"),
        ("jetmoe", "layer 0: got a prefix of . KV heads × ., wanted"),
    ],
)
def test_a_model_that_a_prefix_does_not_reach_exactly_is_refused_when_it_is_tried(model_type, reason):
    with pytest.raises(ConfigError, match=f"model {model_type}.*{reason}"):
        attach(tiny_model(model_type, initializer_range=0.2))


@pytest.mark.parametrize("model_type", ["nemotron", "diffllama", "bert", "roberta", "jetmoe"])
def test_bfloat16_lets_no_model_in_that_a_prefix_does_not_reach(model_type):
    with pytest.raises(ConfigError, match=f"model {model_type}.*"):
        attach(tiny_model(model_type, initializer_range=0.2).bfloat16())


@torch.no_grad()
def test_the_default_model_takes_a_prefix_in_bfloat16_as_exactly_as_in_the_same_arithmetic_without_one():
    def model(dtype):
        return AutoModelForCausalLM.from_pretrained(
            resolve_model(EMBEDDED_MODEL), dtype=dtype, attn_implementation="eager"
        ).eval()

    ids = torch.arange(5, 11)[None]
    plain = [model(dtype)(ids, use_cache=False).logits[0, 3:].float() for dtype in (torch.float32, torch.bfloat16)]
    ours = attach(model(torch.bfloat16))
    start = first_k.initialize(Start(ours, ids[0].tolist(), 3))
    arguments = prefix_arguments(start.keys, start.values, torch.zeros(1, 3, dtype=torch.long))
    got = ours(ids[:, 3:], position_ids=torch.arange(3, 6)[None], use_cache=False, **arguments).logits[0].float()
    rounded = (plain[1] - plain[0]).abs().max()
    assert rounded < 0.1 * plain[0].abs().max()
    torch.testing.assert_close(got, plain[1], atol=0.5 * rounded.item(), rtol=0)


def test_a_window_shorter_than_the_source_is_refused_by_name():
    model = attach(tiny_model("gemma3_text", **{**MIXED, "sliding_window": 16}))
    with pytest.raises(
        ConfigError, match="model gemma3_text, layer 0: .*21 tokens, wanted at most the sliding window of 16"
    ):
        first_k.initialize(Start(model, SOURCE, 21))


def test_a_model_whose_attention_cannot_be_exchanged_is_refused():
    with pytest.raises(ConfigError, match="model bloom: its attention cannot be exchanged"):
        attach(tiny_model("bloom"))
