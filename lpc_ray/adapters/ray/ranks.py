"""What the ranks of a training group agree on. They meet at actors, never in a collective: such a wait has no time-out."""

from collections.abc import Callable
from typing import Any

import ray
import torch

from lpc_ray.errors import DivergedError
from lpc_ray.run.arms import Arm
from lpc_ray.run.checkpoints import ArmFailure

LONGEST_REASON = 400  # characters: what a broadcast carries is to be small
_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


class AgreedError(Exception):
    """What ends an arm, raised on every rank at the same point."""

    def __init__(self, why: str):
        super().__init__(why)


class Ranks:
    """One rank's link to the others. Every rank calls each method at the same point, except `leave`."""

    def __init__(self, desk: Any):
        self._desk = desk
        self.rank = torch.distributed.get_rank()

    def next_arm(self) -> Arm | None:
        """The arm to train next; waits for one. None when the desk is closed."""
        from ray.train.collective import broadcast_from_rank_zero

        found = ray.get(self._desk.next_arm.remote()) is not None if self.rank == 0 else None
        return ray.get(self._desk.current_arm.remote()) if broadcast_from_rank_zero(found) else None

    def failure(self, arm: Arm, own: ArmFailure | None) -> ArmFailure | None:
        """The first failure that any rank has; own: this rank's."""
        from ray.train.collective import barrier, broadcast_from_rank_zero

        if own is not None:
            ray.get(self._desk.note_failure.remote(arm.id, own))
        barrier()
        return broadcast_from_rank_zero(ray.get(self._desk.failure.remote(arm.id)) if self.rank == 0 else None)

    def decided(self, decide: Callable[[], bool]) -> bool:
        """What rank 0 decides. Raises: AgreedError on every rank for a ValueError in `decide`."""
        from ray.train.collective import broadcast_from_rank_zero

        go_on, why = False, ""
        if self.rank == 0:
            try:
                go_on = decide()
            except ValueError as problem:
                why = shortened(problem)
        go_on, why = broadcast_from_rank_zero((go_on, why))
        if why:
            raise AgreedError(why)
        return go_on

    def finish(self, arm: Arm, failure: ArmFailure | None) -> None:
        """Tell the desk that the arm is done with."""
        if self.rank == 0:
            ray.get(self._desk.finish.remote(arm.id, failure))

    def leave(self, arm: Arm, failure: ArmFailure) -> None:
        """Tell the desk how the arm ended on this rank alone: the others may wait in a collective for ever, so that the
        group has to be renewed.
        """
        ray.get(self._desk.finish.remote(arm.id, failure))


def failure_of(error: Exception, step: int, rank: int) -> ArmFailure | None:
    """How an error ends the arm it came from; None for one that may come from anything else."""
    if isinstance(error, DivergedError):
        return ArmFailure("diverged", step, shortened(error))
    if _is_out_of_memory(error):
        why = f"rank {rank} had not enough memory ({shortened(error, 160)}); fewer recipe.training.batch_tokens or a smaller "
        return ArmFailure("out of memory", step, f"{why}prefix need less")
    if isinstance(error, ValueError | AgreedError):
        return ArmFailure("failed", step, shortened(error))
    return None


def shortened(error: Exception, characters: int = LONGEST_REASON) -> str:
    """The error's message on one line."""
    return " ".join(str(error).split())[:characters] or type(error).__name__


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
