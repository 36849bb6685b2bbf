"""Objectives, schedule, batches and resuming, against plain references."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lpc_ray.config import TrainingRecipe
from lpc_ray.errors import DataError
from lpc_ray.prefix import Prefix, attach, prefix_arguments
from lpc_ray.traces import batches, collate, pack
from lpc_ray.training import PlainStepper, PrefixLearner, Progress, kl_sum, lr_factor, ntp_sum, restrict_topk, train
from tests.tiny import rows, tiny_model


def _prefix(tokens: int = 5) -> Prefix:
    generator = torch.Generator().manual_seed(3)
    return Prefix(*(torch.randn(3, tokens, 2, 8, generator=generator) for _ in range(2)), 1)


def _reference(objective: str, taught) -> float:
    """Full logits of one sample at a time, float64, token by token."""
    model = attach(tiny_model()).double()
    prefix = _prefix().double()
    total = 0.0
    for row in taught:
        ids = torch.from_numpy(row.token_ids.astype(np.int64))[None]
        arguments = prefix_arguments(*prefix.full(), torch.zeros_like(ids))
        positions = torch.arange(ids.shape[1])[None] + prefix.num_tokens
        logits = model(ids, position_ids=positions, use_cache=False, **arguments).logits[0]
        log_q = torch.log_softmax(logits, -1)
        for number, at in enumerate(np.flatnonzero(row.is_target)):
            if objective == "ntp":
                total -= log_q[at - 1, int(row.token_ids[at])].item()
                continue
            for token, logprob in zip(row.topk_ids[number], row.topk_logprobs[number], strict=True):
                total -= math.exp(float(logprob)) * log_q[at - 1, int(token)].item()
    return total


@pytest.mark.parametrize("objective", ["ntp", "kl"])
def test_the_packed_loss_equals_a_plain_sum_over_full_logits_in_float64(objective):
    taught = rows(5, seed=2, taught=True)
    learner = PrefixLearner(attach(tiny_model()), _prefix(), objective)
    got = learner(collate(pack(taught, 40))).item()
    assert got == pytest.approx(_reference(objective, taught), rel=1e-5)


def test_kl_has_the_gradient_of_the_divergence_to_the_teacher():
    logits = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    teacher = torch.log_softmax(torch.randn(4, 9, dtype=torch.float64), -1)
    ids = torch.arange(9).expand(4, -1)
    ours = torch.autograd.grad(kl_sum(logits, ids, teacher), logits)[0]
    divergence = torch.nn.functional.kl_div(torch.log_softmax(logits, -1), teacher, log_target=True, reduction="sum")
    torch.testing.assert_close(ours, torch.autograd.grad(divergence, logits)[0])


def test_kl_without_a_teacher_is_refused():
    learner = PrefixLearner(attach(tiny_model()), _prefix(), "kl")
    with pytest.raises(DataError, match="top-k"):
        learner(collate(pack(rows(2), 40)))


def test_ntp_is_the_negative_log_probability_of_the_targets():
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    assert ntp_sum(logits, torch.tensor([1, 0])).item() == pytest.approx(math.log(2) + math.log(4 / 3))


def test_a_mass_cutoff_keeps_the_shortest_rank_prefix_or_everything():
    logprobs = np.log(np.array([[0.6, 0.3, 0.05, 0.01], [0.4, 0.3, 0.1, 0.1]], np.float32))
    kept = restrict_topk(logprobs, 0.85, False)
    assert np.isfinite(kept).tolist() == [[True, True, False, False], [True] * 4]
    renormalised = restrict_topk(logprobs, 0.85, True)
    np.testing.assert_allclose(np.exp(renormalised).sum(axis=1), 1, rtol=1e-6)


def test_the_schedule_applies_from_step_one_warms_up_and_ends_at_its_floor():
    recipe = TrainingRecipe(steps=60, warmup_steps=5, final_lr_fraction=0.1)
    assert lr_factor(1, recipe) == pytest.approx(0.2)
    assert lr_factor(5, recipe) == pytest.approx(1.0)
    assert lr_factor(60, recipe) == pytest.approx(0.1)


def test_checkpoints_are_the_early_steps_then_every_interval_and_the_last():
    recipe = TrainingRecipe(steps=200, checkpoint_interval=50)
    assert recipe.checkpoints() == [0, 1, 2, 4, 8, 16, 24, 48, 98, 148, 198, 200]
    assert TrainingRecipe(steps=10).checkpoints() == [0, 1, 2, 4, 8, 10]


def test_resuming_gives_the_same_batches_as_never_stopping():
    recipe = TrainingRecipe(steps=6, batch_tokens=60, window_tokens=40)
    traces = rows(9)
    whole, halves = [], []

    class Recorder:
        rank, world = 0, 1

        def __init__(self, seen):
            self.seen = seen

        def step(self, micro_batches, global_targets, lr_factor):
            self.seen.append((global_targets, lr_factor, [batch.token_ids.tolist() for batch in micro_batches]))
            return 1.0, 0.0

    train(Recorder(whole), traces, recipe, 5, Progress(), lambda _: True)
    train(Recorder(halves), traces, recipe, 5, Progress(), lambda progress: progress.step != 4)
    train(Recorder(halves), traces, recipe, 5, Progress(step=4), lambda _: True)
    assert whole == halves and len(whole) == 6


def test_training_lowers_the_loss_and_moves_no_backbone_weight():
    traces = rows(4)
    size = sum(len(row.token_ids) for row in traces)
    recipe = TrainingRecipe(steps=30, lr=0.05, batch_tokens=size, window_tokens=64)
    model = attach(tiny_model())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    learner = PrefixLearner(model, _prefix(), "ntp")
    sink = learner.prefix.full()[0][:, :1].clone()
    progress = train(PlainStepper(learner, recipe), traces, recipe, 0, Progress(), lambda _: True)
    assert progress.losses[-1] < progress.losses[0] - 0.05
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(learner.prefix.full()[0][:, :1], sink)


def test_training_without_a_trace_is_refused():
    learner = PrefixLearner(attach(tiny_model()), _prefix(), "ntp")
    recipe = TrainingRecipe(steps=1)
    with pytest.raises(DataError, match="no trace"):
        train(PlainStepper(learner, recipe), [], recipe, 0, Progress(), lambda _: True)


@given(count=st.integers(1, 12), budget=st.integers(1, 90), seed=st.integers(0, 5))
def test_batches_respect_the_budget_and_use_every_trace_once_per_epoch(count, budget, seed):
    traces = rows(count, seed=seed)
    taken = []
    for batch in batches(traces, budget, seed):
        size = sum(len(row.token_ids) for row in batch)
        assert len(batch) == 1 or size <= budget
        taken += batch
        if len(taken) >= 2 * count:
            break
    for epoch in range(2):
        ids = [row.id for row in taken[epoch * count : (epoch + 1) * count]]
        assert sorted(ids) == sorted(row.id for row in traces)


@given(count=st.integers(1, 15), window=st.integers(16, 64), seed=st.integers(0, 5))
def test_packing_keeps_every_sample_whole_and_every_target_once(count, window, seed):
    traces = rows(count, seed=seed)
    packed = pack(traces, window)
    assert sorted(row.id for one in packed for row in one) == sorted(row.id for row in traces)
    windows = collate(packed)
    assert windows.token_ids.shape[1] <= max(window, *(len(row.token_ids) for row in traces))
    assert len(windows.targets) == sum(int(row.is_target.sum()) for row in traces)
    assert (windows.token_ids.reshape(-1)[windows.states + 1] == windows.targets).all()
    assert (windows.segments.reshape(-1)[windows.states] == windows.segments.reshape(-1)[windows.states + 1]).all()
