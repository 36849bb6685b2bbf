"""Objectives against plain float64 references on a tiny model."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lpc_ray.config.recipe import TrainingRecipe
from lpc_ray.errors import DataError
from lpc_ray.prefix.attention import Prefix, attach, prefix_arguments
from lpc_ray.records import TOP_K
from lpc_ray.training.learner import PrefixLearner
from lpc_ray.training.objectives.base import kl_losses, ntp_losses, rows_for, soft_targets
from lpc_ray.training.packing import collate, pack
from tests.tiny import rows, taught_rows, tiny_model

PLAIN = TrainingRecipe()
RECOMPUTED = TrainingRecipe(teacher_targets="recomputed")


def _prefix(tokens: int = 5) -> Prefix:
    generator = torch.Generator().manual_seed(3)
    return Prefix(*(torch.randn(3, tokens, 2, 8, generator=generator) for _ in range(2)), 1)


def _loss(traces, objective: str, recipe: TrainingRecipe, vocab: int = 97) -> float:
    learner = PrefixLearner(attach(tiny_model(vocab_size=vocab)), _prefix(), objective, recipe)
    return learner(collate(pack(rows_for(objective, traces, recipe), 40))).item()


def _student(row, vocab: int = 97) -> torch.Tensor:
    """Logits [T, V] of one sample after the prefix, float64."""
    model, prefix = attach(tiny_model(vocab_size=vocab)).double(), _prefix().double()
    ids = torch.from_numpy(row.token_ids.astype(np.int64))[None]
    positions = torch.arange(ids.shape[1])[None] + prefix.num_tokens
    arguments = prefix_arguments(*prefix.full(), torch.zeros_like(ids))
    return model(ids, position_ids=positions, use_cache=False, **arguments).logits[0].detach()


def _teacher(row, vocab: int = 97) -> torch.Tensor:
    """Logits [N, V] of the plain model after the teacher's prompt, float64."""
    sequence = np.concatenate([row.teacher_prompt, row.token_ids[row.is_target]]).astype(np.int64)
    logits = tiny_model(vocab_size=vocab).double()(torch.from_numpy(sequence)[None]).logits[0].detach()
    return logits[len(row.teacher_prompt) - 1 : -1]


def _reference(traces, ntp_weight: float, temperature: float = 1.0, full: bool = False) -> float:
    """Token by token over full logits of one sample at a time."""
    total = 0.0
    for row in traces:
        logits = _student(row)
        teacher = torch.softmax(_teacher(row) / temperature, -1) if full else None
        for number, at in enumerate(np.flatnonzero(row.is_target)):
            log_q = torch.log_softmax(logits[at - 1], -1)
            total -= ntp_weight * log_q[int(row.token_ids[at])].item()
            log_q = torch.log_softmax(logits[at - 1] / temperature, -1)
            if teacher is not None:
                kl = -(teacher[number] * log_q).sum().item()
            else:
                top_k = zip(row.topk_ids[number], row.topk_logprobs[number], strict=True)
                kl = -sum(math.exp(float(logprob)) * log_q[int(token)].item() for token, logprob in top_k)
            total += (1 - ntp_weight) * kl * temperature**2
    return total


@pytest.mark.parametrize(
    ("objective", "recipe", "weight", "full"),
    [
        ("ntp", PLAIN, 1.0, False),
        ("kl", PLAIN, 0.0, False),
        ("mix", TrainingRecipe(mix_ntp_weight=0.3), 0.3, False),
        ("kl", RECOMPUTED, 0.0, True),
        ("mix", TrainingRecipe(mix_ntp_weight=0.3, teacher_targets="recomputed"), 0.3, True),
        ("kl", TrainingRecipe(kl_temperature=2.5, teacher_targets="recomputed"), 0.0, True),
    ],
)
def test_the_packed_loss_equals_a_plain_sum_over_full_logits_in_float64(objective, recipe, weight, full):
    traces = taught_rows(5, seed=2)
    expected = _reference(traces, weight, recipe.kl_temperature, full)
    assert _loss(traces, objective, recipe) == pytest.approx(expected, rel=1e-5)


def test_stored_and_recomputed_targets_are_equal_where_the_top_k_spans_the_vocabulary():
    traces = taught_rows(4, vocab=TOP_K)
    assert _loss(traces, "kl", PLAIN, TOP_K) == pytest.approx(_loss(traces, "kl", RECOMPUTED, TOP_K), rel=1e-5)
    warm = {"kl_temperature": 3.0, "renormalise_topk": True}
    stored, recomputed = TrainingRecipe(**warm), TrainingRecipe(**warm, teacher_targets="recomputed")
    assert _loss(traces, "kl", stored, TOP_K) == pytest.approx(_loss(traces, "kl", recomputed, TOP_K), rel=1e-5)


def test_stored_and_recomputed_targets_are_equal_where_a_mass_cutoff_keeps_less_than_the_top_k():
    traces = taught_rows(4, seed=1)
    mass = 0.9 * min(np.exp(row.topk_logprobs).sum(axis=1).min() for row in traces)
    for renormalise in (False, True):
        stored = TrainingRecipe(topk_mass=mass, renormalise_topk=renormalise)
        recomputed = stored.model_copy(update={"teacher_targets": "recomputed"})
        assert _loss(traces, "kl", stored) == pytest.approx(_loss(traces, "kl", recomputed), rel=1e-5)


def test_kl_has_the_gradient_of_the_divergence_to_the_teacher():
    logits = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    teacher = torch.log_softmax(torch.randn(4, 9, dtype=torch.float64), -1)
    ids = torch.arange(9).expand(4, -1)
    ours = torch.autograd.grad(kl_losses(logits, teacher.exp(), ids).sum(), logits)[0]
    divergence = torch.nn.functional.kl_div(torch.log_softmax(logits, -1), teacher, log_target=True, reduction="sum")
    torch.testing.assert_close(ours, torch.autograd.grad(divergence, logits)[0])


def test_a_prefix_without_a_teacher_is_refused_before_training():
    with pytest.raises(DataError, match="top-k"):
        rows_for("kl", rows(2), PLAIN)
    with pytest.raises(DataError, match="top-k"):
        PrefixLearner(attach(tiny_model()), _prefix(), "kl", PLAIN)(collate(pack(rows(2), 40)))
    promptless = [replace(row, teacher_prompt=np.zeros(0, np.int32)) for row in taught_rows(2)]
    with pytest.raises(DataError, match="prompt its teacher saw"):
        rows_for("kl", promptless, RECOMPUTED)


def test_ntp_is_the_negative_log_probability_of_the_targets():
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    assert ntp_losses(logits, torch.tensor([1, 0])).tolist() == pytest.approx([math.log(2), math.log(4 / 3)])


def test_a_mass_cutoff_keeps_the_shortest_rank_prefix_or_everything():
    logprobs = torch.tensor([[0.6, 0.3, 0.05, 0.01], [0.4, 0.3, 0.1, 0.1]]).log()
    kept = soft_targets(logprobs, TrainingRecipe(topk_mass=0.85))
    assert (kept > 0).tolist() == [[True, True, False, False], [True] * 4]
    torch.testing.assert_close(kept[0, :2], torch.tensor([0.6, 0.3]))
    renormalised = soft_targets(logprobs, TrainingRecipe(topk_mass=0.85, renormalise_topk=True))
    torch.testing.assert_close(renormalised.sum(dim=1), torch.ones(2))


@pytest.mark.parametrize("recipe", [PLAIN, RECOMPUTED])
@pytest.mark.parametrize("objective", ["ntp", "kl", "mix"])
def test_general_prompts_are_distilled_whatever_the_objective(objective, recipe):
    recipe = recipe.model_copy(update={"general_share": 0.3})
    own, general = taught_rows(3), [replace(row, id=f"g{row.id}", family="general") for row in taught_rows(3, seed=5)]
    apart = _loss(own, objective, recipe) + _loss(general, "kl", recipe)
    assert _loss(own + general, objective, recipe) == pytest.approx(apart, rel=1e-5)


def test_a_temperature_over_a_cut_off_distribution_is_refused():
    with pytest.raises(ValueError, match="kl_temperature: got 2 over a cut-off"):
        TrainingRecipe(kl_temperature=2.0)
