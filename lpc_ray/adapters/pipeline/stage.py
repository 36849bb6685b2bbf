"""What a stage of a run is: a function of the run's context, and what it needs before it is called."""

from collections.abc import Callable
from dataclasses import dataclass

from lpc_ray.adapters.pipeline.context import RunContext

Work = Callable[[RunContext], None]


@dataclass(frozen=True)
class Stage:
    """Does what the run's store does not hold yet. A job lists its stages, and they are called in that order.

    needs_ray: whether it may compute on the machines, so that a run which lists it joins a cluster first.
    prepare: called before the first stage of the run, so that what is slow to start loads while other stages work.
    """

    work: Work
    needs_ray: bool = True
    prepare: Work | None = None

    def __call__(self, context: RunContext) -> None:
        self.work(context)


def stage(needs_ray: bool = True, prepare: Work | None = None) -> Callable[[Work], Stage]:
    """Make a function a `Stage`."""
    return lambda work: Stage(work, needs_ray, prepare)
