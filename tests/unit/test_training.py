"""Schedule, batches, packing and resuming."""

import math
import time
from dataclasses import replace
from math import inf, nan
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lpc_ray.config.recipe import TrainingRecipe
from lpc_ray.errors import DataError, DivergedError
from lpc_ray.prefix.attention import Prefix, attach
from lpc_ray.training import learner as learner_module
from lpc_ray.training.learner import PrefixLearner
from lpc_ray.training.loop import Progress, lr_factor, train
from lpc_ray.training.objectives.base import rows_for
from lpc_ray.training.packing import batches, collate, pack
from lpc_ray.training.stepper import PlainStepper, StepTaken
from tests.tiny import rows, taught_rows, tiny_model


def _prefix(tokens: int = 5) -> Prefix:
    generator = torch.Generator().manual_seed(3)
    return Prefix(*(torch.randn(3, tokens, 2, 8, generator=generator) for _ in range(2)), 1)


def test_training_on_general_prompts_that_are_not_there_is_refused():
    learner = PrefixLearner(attach(tiny_model()), _prefix(), "ntp", TrainingRecipe(steps=1))
    recipe = TrainingRecipe(steps=1, general_share=0.1)
    with pytest.raises(DataError, match="general_share 0.1"):
        train(PlainStepper(learner, recipe), rows(3), recipe, 0, Progress(), lambda _: True)


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
        learner = SimpleNamespace(loss_of_guessing=4.0)

        def __init__(self, seen):
            self.seen = seen

        def step(self, micro_batches, global_targets, lr_factor):
            self.seen.append((global_targets, lr_factor, [batch.token_ids.tolist() for batch in micro_batches]))
            return StepTaken(1.0, 0.0, 0.0)

    steps = []
    train(Recorder(whole), traces, recipe, 5, Progress(), lambda _: True, after_step=lambda now: steps.append(now.step))
    assert steps == [1, 2, 3, 4, 5, 6]
    train(Recorder(halves), traces, recipe, 5, Progress(), lambda progress: progress.step != 4)
    train(Recorder(halves), traces, recipe, 5, Progress(step=4), lambda _: True)
    assert whole == halves and len(whole) == 6


def test_training_lowers_the_loss_and_moves_no_backbone_weight():
    traces = rows(4)
    size = sum(len(row.token_ids) for row in traces)
    recipe = TrainingRecipe(steps=30, lr=0.05, batch_tokens=size, window_tokens=64)
    model = attach(tiny_model())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    learner = PrefixLearner(model, _prefix(), "ntp", recipe)
    sink = learner.prefix.full()[0][:, :1].clone()
    progress = train(PlainStepper(learner, recipe), traces, recipe, 0, Progress(), lambda _: True)
    assert progress.losses[-1] < progress.losses[0] - 0.05
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(learner.prefix.full()[0][:, :1], sink)


def test_training_without_a_trace_is_refused():
    recipe = TrainingRecipe(steps=1)
    learner = PrefixLearner(attach(tiny_model()), _prefix(), "ntp", recipe)
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


@given(share=st.floats(0.05, 0.6), seed=st.integers(0, 5))
def test_general_prompts_make_up_their_share_of_the_tokens_and_leave_the_order_of_the_others(share, seed):
    own = rows(9, seed=seed)
    general = [replace(row, id=f"g{row.id}", family="general") for row in rows(7, seed=seed + 1)]
    taken = []
    for batch in batches(own, 60, seed, general, share):
        taken += batch
        if len(taken) > 200:
            break
    sizes = {kind: sum(len(row.token_ids) for row in taken if (row.family == "general") == kind) for kind in (0, 1)}
    assert sizes[1] / (sizes[0] + sizes[1]) == pytest.approx(share, abs=0.02)
    plain = [row.id for batch, _ in zip(batches(own, 60, seed), range(80), strict=False) for row in batch]
    without = [row.id for row in taken if row.family != "general"]
    assert without == plain[: len(without)]


def test_a_plain_stepper_that_continues_from_a_saved_state_equals_one_that_never_stopped():
    recipe = TrainingRecipe(steps=6, warmup_steps=2, batch_tokens=60, window_tokens=40)
    traces = rows(9)

    def new_stepper(prefix: Prefix) -> PlainStepper:
        return PlainStepper(PrefixLearner(attach(tiny_model()), prefix, "ntp", recipe), recipe)

    whole = new_stepper(_prefix())
    losses = train(whole, traces, recipe, 5, Progress(), lambda _: True).losses
    first = new_stepper(_prefix())
    stopped = train(first, traces, recipe, 5, Progress(), lambda now: now.step != 4)
    state = first.state()
    first.close()
    second = new_stepper(Prefix(state["keys"], state["values"], 1))
    second.restore_moments(state, stopped.step)
    resumed = train(second, traces, recipe, 5, Progress(step=stopped.step), lambda _: True)
    assert stopped.losses + resumed.losses == pytest.approx(losses)
    for name, tensor in whole.state().items():
        torch.testing.assert_close(second.state()[name], tensor)


@pytest.mark.parametrize(("targets", "passes"), [("stored", 0), ("recomputed", 4)])
def test_a_teachers_passes_are_timed_apart_from_training(targets, passes, monkeypatch):
    recipe = TrainingRecipe(steps=4, batch_tokens=60, window_tokens=40, teacher_targets=targets)
    quick = learner_module.teacher_logits

    def slow(*given):
        time.sleep(0.5)
        return quick(*given)

    monkeypatch.setattr(learner_module, "teacher_logits", slow)
    stepper = PlainStepper(PrefixLearner(attach(tiny_model()), _prefix(), "kl", recipe), recipe)
    started = time.perf_counter()
    traces = rows_for("kl", taught_rows(9), recipe)
    progress = train(stepper, traces, recipe, 5, Progress(), lambda _: True)
    took = time.perf_counter() - started
    if not passes:
        assert progress.teacher_pass_seconds == 0.0
    assert 0.5 * passes <= progress.teacher_pass_seconds
    assert progress.training_seconds <= took - 0.5 * passes
    assert progress.training_seconds + progress.teacher_pass_seconds <= took


class Scripted:
    """A stepper whose losses are given."""

    rank, world = 0, 1
    learner = SimpleNamespace(loss_of_guessing=4.0)

    def __init__(self, losses, norm=1.0):
        self.left, self.norm = iter(losses), norm

    def step(self, micro_batches, global_targets, lr_factor):
        return StepTaken(next(self.left), self.norm, 0.0)


def _train_scripted(losses, norm=1.0, progress=None) -> Progress:
    recipe = TrainingRecipe(steps=len(losses))
    progress = progress or Progress()
    return train(Scripted(losses, norm), rows(3), recipe, 0, progress, lambda now: now.step < len(losses))


@pytest.mark.parametrize(
    ("losses", "norm"), [([2.0, nan], 1.0), ([2.0, inf], 1.0), ([2.0, -inf], 1.0), ([2.0], nan), ([2.0], inf)]
)
def test_a_loss_or_gradient_that_is_no_number_ends_training_at_its_step(losses, norm):
    progress, published = Progress(), []
    with pytest.raises(DivergedError, match=rf"got loss {losses[-1]:g} and gradient norm {norm:g}.*lr \(0.05\)"):
        train(
            Scripted(losses, norm),
            rows(3),
            TrainingRecipe(steps=9),
            0,
            progress,
            lambda now: not published.append(now.step),
        )
    assert progress.step == len(losses) and progress.step not in published


def test_a_loss_that_stays_far_above_guessing_ends_training():
    """Guessing gives 4, so that 5 is the limit; ten losses in a row above it are the rule."""
    with pytest.raises(
        DivergedError, match="above 5 for 10 steps in a row, now 5.1; it began at 2, and guessing would give 4"
    ):
        _train_scripted([2.0, *[5.1] * 10, 1.0])
    with pytest.raises(DivergedError, match="above 8.75 for 10 steps"):
        _train_scripted([7.0, *[8.8] * 10])


@pytest.mark.parametrize(
    "losses",
    [
        [2.0, *[5.1] * 9, 4.9, *[5.1] * 9, 1.0],
        [1.0, *[4.9] * 80, 0.5],
        [12.0, *[14.9] * 30],
        [0.0] * 30,
    ],
    ids=["it comes back in time", "large first steps that are repaired", "a bad start", "nothing to learn"],
)
def test_losses_that_may_be_repaired_end_nothing(losses):
    assert _train_scripted(losses).losses == losses


def test_the_first_loss_is_remembered_when_training_resumes():
    """Counted from 7, where it began, and not from the 9 of the first step after the resumption."""
    with pytest.raises(DivergedError, match="it began at 7"):
        _train_scripted([9.0] * 10, progress=Progress(step=0, first_loss=7.0))


def test_guessing_costs_the_logarithm_of_the_vocabulary():
    recipe = TrainingRecipe(steps=1)
    assert PrefixLearner(attach(tiny_model()), _prefix(), "ntp", recipe).loss_of_guessing == pytest.approx(math.log(97))
    hot = TrainingRecipe(steps=1, kl_temperature=2.0, renormalise_topk=True)
    assert PrefixLearner(attach(tiny_model()), _prefix(), "kl", hot).loss_of_guessing == pytest.approx(4 * math.log(97))


def test_a_prefix_that_a_step_has_blown_up_ends_training_at_the_next_one():
    recipe = TrainingRecipe(steps=9, checkpoint_steps=(), batch_tokens=60, window_tokens=40)
    stepper = PlainStepper(PrefixLearner(attach(tiny_model()), _prefix(), "ntp", recipe), recipe)
    moments = {f"{name}.exp_avg": torch.full((3, 4, 2, 8), 3e38) for name in ("keys", "values")}
    stepper.restore_moments({**moments, **{name + "_sq": torch.zeros(3, 4, 2, 8) for name in moments}}, 2)
    progress = Progress(step=2)
    with pytest.raises(DivergedError, match="got loss nan"):
        train(stepper, rows(9), recipe, 5, progress, lambda _: True)
    assert progress.step == 4 and math.isfinite(progress.losses[0])
