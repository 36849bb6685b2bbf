"""Training a prefix: the schedule, the loop over batches, and what is known of its progress. Knows no framework but torch."""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lpc_ray.config.recipe import TrainingRecipe
from lpc_ray.errors import DataError, DivergedError
from lpc_ray.records import TraceRow
from lpc_ray.training.packing import Windows, batches, collate, pack
from lpc_ray.training.stepper import Stepper

EXPLODED_BY, EXPLODED_STEPS = 1.25, 10


def lr_factor(step: int, recipe: TrainingRecipe) -> float:
    """The learning rate of optimizer step `step` (from 1) as a fraction of its peak: linear warm-up, then a cosine."""
    if step <= recipe.warmup_steps:
        return step / recipe.warmup_steps
    span = max(1, recipe.steps - recipe.warmup_steps)
    progress = (step - recipe.warmup_steps) / span
    return recipe.final_lr_fraction + (1 - recipe.final_lr_fraction) * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass
class Progress:
    """Where a training run stands; `loss` is the mean per target of the last step, None before the first.

    teacher_pass_seconds: of teacher passes made while training, no part of training_seconds.
    """

    step: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    targets_seen: int = 0
    tokens_seen: int = 0
    training_seconds: float = 0.0
    teacher_pass_seconds: float = 0.0
    first_loss: float | None = None
    losses: list[float] = field(default_factory=list)


def train(
    stepper: Stepper,
    rows: list[TraceRow],
    recipe: TrainingRecipe,
    seed: int,
    progress: Progress,
    at_checkpoint: Callable[[Progress], bool],
    general: list[TraceRow] | None = None,
    after_step: Callable[[Progress], None] | None = None,
) -> Progress:
    """Run optimizer steps until `recipe.steps`; at each checkpoint step not yet passed call `at_checkpoint`.

    progress: the state to continue from; mutated and returned. Training ends when `at_checkpoint` returns False.
    general: traces of general prompts, `recipe.general_share` of the tokens. after_step: called after each step, for
    news of it. Raises: as `check_rows`; DivergedError, on every rank alike.
    """
    check_rows(rows, recipe, general)
    checkpoints = set(recipe.checkpoints())
    if progress.step == 0 and not at_checkpoint(progress):
        return progress
    drawn = batches(rows, recipe.batch_tokens, seed, general, recipe.general_share)
    upcoming = itertools.islice(drawn, progress.step, recipe.steps)
    for chosen in upcoming:
        started = time.perf_counter()
        step = progress.step + 1
        targets = sum(int(row.is_target.sum()) for row in chosen)
        mine = micro_batches(chosen, recipe, stepper.rank, stepper.world)
        taken = stepper.step(mine, targets, lr_factor(step, recipe))
        before, progress.loss, progress.grad_norm = progress.loss, taken.loss, taken.grad_norm
        if progress.first_loss is None:
            progress.first_loss = taken.loss
        progress.losses.append(progress.loss)
        progress.step = step
        progress.targets_seen += targets
        progress.tokens_seen += sum(len(row.token_ids) for row in chosen)
        progress.training_seconds += time.perf_counter() - started - taken.teacher_seconds
        progress.teacher_pass_seconds += taken.teacher_seconds
        _check_converges(progress, before, stepper.learner.loss_of_guessing, recipe)
        if after_step is not None:
            after_step(progress)
        if step in checkpoints and not at_checkpoint(progress):
            break
    return progress


def check_rows(rows: list[TraceRow], recipe: TrainingRecipe, general: list[TraceRow] | None = None) -> None:
    """Raises: DataError without traces, or without those of general prompts where these have a share."""
    if recipe.general_share and not general:
        raise DataError(
            f"training: got no trace of a general prompt, wanted some for general_share {recipe.general_share}"
        )
    if not rows:
        raise DataError("training: got no trace that can be trained on, wanted at least one")


def _check_converges(progress: Progress, before: float | None, guessing: float, recipe: TrainingRecipe) -> None:
    """Raises: DivergedError for a loss or gradient that is no number, and for a loss that stays above that of guessing.

    before: the loss of the step before. Large steps may be repaired later, and some prefixes start badly, so that only
    `EXPLODED_STEPS` losses in a row, each well above both guessing and the first loss, count.
    """
    advice = f"a lower recipe.training.lr ({recipe.lr:g}) or key_lr_factor ({recipe.key_lr_factor:g}) may help"
    if not (math.isfinite(progress.losses[-1]) and math.isfinite(progress.grad_norm or 0.0)):
        was = "" if before is None else f" after a loss of {before:.3g}"
        raise DivergedError(f"got loss {progress.loss:g} and gradient norm {progress.grad_norm:g}{was}; {advice}")
    limit = EXPLODED_BY * max(guessing, progress.first_loss or 0.0)
    latest = progress.losses[-EXPLODED_STEPS:]
    if len(latest) == EXPLODED_STEPS and min(latest) > limit:
        raise DivergedError(
            f"got a loss above {limit:.3g} for {EXPLODED_STEPS} steps in a row, now {latest[-1]:.3g}; it began at "
            f"{progress.first_loss:.3g}, and guessing would give {guessing:.3g}; {advice}"
        )


def micro_batches(chosen: list[TraceRow], recipe: TrainingRecipe, rank: int = 0, world: int = 1) -> list[Windows]:
    """This rank's micro-batches of a step; every rank gets equally many (an empty one has no targets and a loss of zero)."""
    packed = [pack(chosen[one::world], recipe.window_tokens) for one in range(world)]
    size = recipe.micro_batch_windows
    count = max(1, *(-(-len(windows) // size) for windows in packed))
    mine = packed[rank]
    return [collate(mine[start : start + size]) for start in range(0, count * size, size)]
