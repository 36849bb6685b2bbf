#!/usr/bin/env python
"""The main job: from a document to verified, tracked prefixes and a report; from many tasks to one report over them."""

from lpc_ray.cli.jobs import run_job


def stages():
    from lpc_ray.adapters.pipeline.induce import make_traces
    from lpc_ray.adapters.pipeline.report import write_report
    from lpc_ray.adapters.pipeline.train import train_arms
    from lpc_ray.adapters.pipeline.verify import gate_arms, verify_baselines, verify_held_out

    return [make_traces, verify_baselines, train_arms, verify_held_out, gate_arms, write_report]


def work(plan, run):
    from lpc_ray.adapters.pipeline.pipeline import run_stages

    run_stages(plan, run, stages())


def work_many(config, store, unsandboxed):
    from lpc_ray.adapters.pipeline.pipeline import carry_out
    from lpc_ray.suite.suite import run_many

    run_many(config, store, lambda job, folder: carry_out(job, folder, stages(), unsandboxed))
    print(store.path("comparison.html"))


if __name__ == "__main__":
    run_job(__doc__, work, work_many=work_many)
