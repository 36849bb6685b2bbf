#!/usr/bin/env python
"""The main job: from a document to verified, tracked prefixes and a report; from many tasks to one report over them."""

from lpc_ray.cli.jobs import run_job

STAGES = ("induce", "baselines", "sweep", "held_out", "gate", "report")


def work(plan, run):
    from lpc_ray.adapters.pipeline.pipeline import run_stages

    run_stages(plan, run, *STAGES)


def work_many(config, store, unsandboxed):
    from lpc_ray.adapters.pipeline.pipeline import carry_out
    from lpc_ray.suite.suite import run_many

    run_many(config, store, lambda job, folder: carry_out(job, folder, STAGES, unsandboxed))
    print(store.path("comparison.html"))


if __name__ == "__main__":
    run_job(__doc__, work, work_many=work_many)
