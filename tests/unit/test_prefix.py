"""Attention with a prefix against transformers' own DynamicCache."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicCache

from lpc_ray.config.recipe import TrainingRecipe
from lpc_ray.errors import ConfigError
from lpc_ray.prefix import merged
from lpc_ray.prefix.attention import Prefix, attach, forward_cache, prefix_arguments, prompt_mask
from lpc_ray.training.learner import PrefixLearner, target_logits
from lpc_ray.training.packing import collate, pack
from tests.tiny import rows, tiny_model

PREFIX_TOKENS = 7
ARCHITECTURES = ["llama", "qwen3", "qwen2", "mistral", "phi3", "gemma2", "granite", "olmo2"]


def _prefix(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(3, PREFIX_TOKENS, 2, 8, generator=generator) for _ in range(2))


def _with_dynamic_cache(model, keys, values, token_ids):
    """The oracle: one row, the prefix in a cache object, sdpa attention of transformers."""
    cache = DynamicCache()
    for layer in range(keys.shape[0]):
        cache.update(keys[layer].transpose(0, 1)[None], values[layer].transpose(0, 1)[None], layer)
    positions = torch.arange(len(token_ids))[None] + keys.shape[1]
    ids = torch.as_tensor(token_ids, dtype=torch.long)[None]
    return model(input_ids=ids, position_ids=positions, past_key_values=cache).logits[0]


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_packed_rows_with_a_prefix_equal_one_cached_forward_per_sample(model_type):
    keys, values = _prefix()
    samples = rows(6, seed=4)
    windows = collate(pack(samples, 40))
    assert windows.token_ids.shape[0] > 1 and (windows.segments.max() > 0)
    ours = attach(tiny_model(model_type, attn_implementation="eager"))
    got = target_logits(ours, Prefix(keys, values, 1), windows)
    oracle = tiny_model(model_type, attn_implementation="eager")
    wanted = []
    for window in pack(samples, 40):
        for row in window:
            logits = _with_dynamic_cache(oracle, keys, values, row.token_ids)
            wanted.append(logits[np.flatnonzero(row.is_target) - 1])
    torch.testing.assert_close(got, torch.cat(wanted), atol=1e-5, rtol=0)


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_reach_every_layer_and_equal_the_cache_path(model_type, checkpointing):
    keys, values = _prefix()
    samples = rows(1, seed=9)
    model = attach(tiny_model(model_type))
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    learner = PrefixLearner(model, Prefix(keys, values, 1), "ntp", TrainingRecipe(steps=1))
    learner(collate([samples])).backward()
    oracle = tiny_model(model_type)
    oracle_keys, oracle_values = keys.clone().requires_grad_(), values.clone().requires_grad_()
    logits = _with_dynamic_cache(oracle, oracle_keys, oracle_values, samples[0].token_ids)
    at = np.flatnonzero(samples[0].is_target)
    targets = torch.from_numpy(samples[0].token_ids[at]).long()
    torch.nn.functional.cross_entropy(logits[at - 1], targets, reduction="sum").backward()
    for ours, theirs in ((learner.prefix.keys, oracle_keys), (learner.prefix.values, oracle_values)):
        torch.testing.assert_close(ours.grad, theirs.grad[:, 1:], atol=1e-5, rtol=1e-4)
        assert (ours.grad.abs().amax(dim=(1, 2, 3)) > 0).all()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_each_row_of_a_batch_can_use_its_own_prefix():
    model = attach(tiny_model())
    first, second = _prefix(1), _prefix(2)
    ids = torch.randint(0, 97, (2, 9), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(9)[None].expand(2, -1) + PREFIX_TOKENS
    both = [torch.stack(pair) for pair in zip(first, second, strict=True)]
    segments = torch.zeros(2, 9, dtype=torch.long)
    order = torch.tensor([1, 0])
    mixed = model(ids, position_ids=positions, use_cache=False, **prefix_arguments(*both, segments, order)).logits
    for row, (keys, values) in ((0, second), (1, first)):
        alone = model(
            ids[row : row + 1],
            position_ids=positions[:1],
            use_cache=False,
            **prefix_arguments(keys, values, segments[:1]),
        ).logits
        torch.testing.assert_close(mixed[row], alone[0], atol=1e-5, rtol=0)


def test_the_mask_separates_samples():
    mask = prompt_mask(torch.tensor([[0, 0, 1, -1]]))[0, 0]
    wanted = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.bool)
    assert torch.equal(mask, wanted)


def test_an_attached_model_without_a_prefix_is_the_model_itself():
    ids = torch.randint(0, 97, (1, 12), generator=torch.Generator().manual_seed(0))
    plain, attached = tiny_model(), attach(tiny_model())
    torch.testing.assert_close(attached(ids, use_cache=False).logits, plain(ids).logits, atol=1e-5, rtol=0)
    keys, _ = forward_cache(attached, ids[0].tolist())
    assert keys.shape == (3, 12, 2, 8)


def test_a_sliding_window_shorter_than_prefix_and_prompt_is_refused():
    model = attach(tiny_model("mistral", sliding_window=8))
    with pytest.raises(ConfigError, match="sliding window of 8"):
        target_logits(model, Prefix(*_prefix(), 1), collate(pack(rows(1), 40)))


def _parts(dtype, rows=2, prefix=5, length=4, group=3) -> Any:
    generator = torch.Generator().manual_seed(0)
    shapes = [(rows, 2, group * length, 8), *[(rows, 2, prefix, 8)] * 2, *[(rows, 2, length, 8)] * 2]
    parts = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    is_seen = prompt_mask(torch.tensor([[0, 0, 1, 1], [0, 0, 0, -1]][:rows]))
    return parts, torch.zeros(is_seen.shape, dtype=dtype).masked_fill(~is_seen, torch.finfo(dtype).min)


def test_merged_parts_have_the_gradients_of_one_softmax():
    """Against central differences, and against the plain path in float64."""
    parts, bias = _parts(torch.float64)
    leaves: Any = [part.requires_grad_() for part in parts]
    whole = bias.repeat(1, 1, 3, 1)
    assert torch.autograd.gradcheck(lambda *five: merged._Merged.apply(*five, whole, 0.3), leaves, atol=1e-6)
    outputs = (
        merged._Merged.apply(*leaves, whole, 0.3),
        merged._plain(leaves[0], leaves[1:3], leaves[3:], bias, 0.3, None),
    )
    torch.testing.assert_close(*outputs, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_and_many_scores_are_computed_alike(monkeypatch, dtype):
    """Whatever way is taken, outputs and gradients are those of float64, within the dtype's rounding."""
    parts, bias = _parts(dtype)
    wanted_parts: Any = [part.double().requires_grad_() for part in parts]
    wanted = merged._plain(wanted_parts[0], wanted_parts[1:3], wanted_parts[3:], bias.double(), 0.3, None)
    wanted.sum().backward()
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    for limit in (0, 1 << 30):
        monkeypatch.setattr(merged, "FLASH_SCORES", limit)
        leaves: Any = [part.clone().requires_grad_() for part in parts]
        got = merged.prefix_and_prompt(leaves[0], tuple(leaves[1:3]), tuple(leaves[3:]), bias, 0.3, None)
        got.sum().backward()
        torch.testing.assert_close(got.double(), wanted, atol=tolerance, rtol=0)
        for ours, theirs in zip(leaves, wanted_parts, strict=True):
            torch.testing.assert_close(ours.grad.double(), theirs.grad, atol=2 * tolerance, rtol=0)
