"""The DeepSpeed stepper against plain torch, on two gloo processes."""

import os
import socket

import pytest
import torch
import torch.multiprocessing as mp

from lpc_ray.config.recipe import TrainingRecipe
from lpc_ray.prefix.attention import Prefix, attach
from lpc_ray.records import TraceRow
from lpc_ray.training.learner import PrefixLearner
from lpc_ray.training.loop import Progress, train
from lpc_ray.training.stepper import PlainStepper
from tests.tiny import rows, taught_rows, tiny_model

RECIPE = TrainingRecipe(steps=6, lr=0.02, warmup_steps=2, batch_tokens=70, window_tokens=32, clip_norm=0.5)

CASES = [
    (objective, stage, interrupt_at)
    for objective in ("ntp", "kl", "recomputed")
    for stage in (1, 3)
    for interrupt_at in (None, 4)
]


def _learner(objective: str, shard: bool = False) -> PrefixLearner:
    """`recomputed` is `kl` with the teacher's targets recomputed in the worker."""
    torch.manual_seed(3)
    prefix = Prefix(torch.randn(3, 5, 2, 8), torch.randn(3, 5, 2, 8), 1)
    recipe = RECIPE.model_copy(update={"teacher_targets": "recomputed" if objective == "recomputed" else "stored"})
    name = "ntp" if objective == "ntp" else "kl"
    return PrefixLearner(attach(tiny_model()), prefix, name, recipe, shard_backbone=shard)


def _traces(objective: str) -> list[TraceRow]:
    return rows(12) if objective == "ntp" else taught_rows(12)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _worker(rank, world, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(LOCAL_RANK=str(rank), DS_ACCELERATOR="cpu")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    results = {key: _run(*key) for key in CASES}
    if rank == 0:
        torch.save({str(key): result for key, result in results.items()}, folder / "results.pt")
    torch.distributed.destroy_process_group()


def _run(objective, stage, interrupt_at):
    from lpc_ray.adapters.deepspeed import DeepSpeedStepper

    traces = _traces(objective)
    learner = _learner(objective, shard=stage == 3)
    stepper = DeepSpeedStepper(learner, RECIPE, stage)
    progress = train(stepper, traces, RECIPE, 7, Progress(), lambda state: state.step != interrupt_at)
    losses, state = list(progress.losses), stepper.state()
    trainable = [name for name, parameter in learner.named_parameters() if parameter.requires_grad]
    stepper.close()
    if interrupt_at is not None:
        resumed = _learner(objective, shard=stage == 3)
        with torch.no_grad():
            resumed.prefix.keys.copy_(state["keys"][:, 1:])
            resumed.prefix.values.copy_(state["values"][:, 1:])
        stepper = DeepSpeedStepper(resumed, RECIPE, stage)
        stepper.restore_moments(state, progress.step)
        progress = train(stepper, traces, RECIPE, 7, Progress(step=progress.step), lambda _: True)
        losses, state = losses + progress.losses, stepper.state()
        stepper.close()
    return {"losses": losses, "trainable": trainable, "teacher": progress.teacher_pass_seconds, **state}


def _reference(objective):
    learner = _learner(objective)
    progress = train(PlainStepper(learner, RECIPE), _traces(objective), RECIPE, 7, Progress(), lambda _: True)
    return progress.losses, learner.prefix.full()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepspeed")
    mp.spawn(_worker, (2, _free_port(), folder), nprocs=2)
    return torch.load(folder / "results.pt", weights_only=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_two_workers_under_zero_equal_one_process_in_plain_torch(results, case):
    got = results[str(case)]
    losses, (keys, values) = _reference(case[0])
    assert got["trainable"] == ["prefix.keys", "prefix.values"]
    assert got["losses"] == pytest.approx(losses, rel=1e-4)
    assert got["teacher"] > 0 if case[0] == "recomputed" else got["teacher"] == 0
    assert (keys - _learner(case[0]).prefix.full()[0]).abs().max() > 0.05
    torch.testing.assert_close(got["keys"], keys, atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(got["values"], values, atol=2e-4, rtol=1e-3)
