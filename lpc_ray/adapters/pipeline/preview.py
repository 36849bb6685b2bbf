"""`jobs/induce.py --preview`: each trace set's preview, with a real teacher, before anything is stored."""

import ray

from lpc_ray.adapters.ray.engine_pool import start_engine_pool, stop_engines
from lpc_ray.records import Ask, Reply
from lpc_ray.run.plan import Plan
from lpc_ray.terminal import Console, uninterrupted
from lpc_ray.traces.inducer import Inducer
from lpc_ray.traces.preview import preview, printed


def preview_induction(plan: Plan, count: int, say: Console) -> None:
    """Print what `count` chunks of every trace set of the plan give, and what all of it would cost."""
    sets = plan.trace_sets()
    generate, engines = _nobody, []
    try:
        if any(plan.families[one.family].needs_teacher() for one in sets):
            say("engine", f"starting with {plan.config.recipe.model.id}")
            name = f"lpc-preview-{plan.fingerprint[:8]}"
            pool, engines, ready = start_engine_pool(name, plan.config.recipe, plan.config.cluster.engine)
            ray.get(ready)
            generate = pool.generate
        for one in sets:
            say("preview", f"{one.family}, induction seed {one.induction_seed}")
            inducer = Inducer(plan.induction_task(one))
            shown = preview(inducer, plan.units(one.family, one.induction_seed), generate, count)
            print(printed(shown, inducer), flush=True)
    finally:
        with uninterrupted():
            stop_engines(engines)


def _nobody(asks: list[Ask]) -> list[Reply]:
    raise AssertionError("a family that says it needs no teacher asked one")
