#!/usr/bin/env python
"""The main job: from a document to verified, tracked prefixes and a report."""

from lpc_ray.cli import run_job


def work(plan, run):
    from lpc_ray.adapters.pipeline import Pipeline, connect
    from lpc_ray.console import Console

    console = Console()
    connect(plan)
    pipeline = Pipeline(plan, run, console)
    pipeline.induce()
    pipeline.baselines()
    pipeline.sweep()
    pipeline.held_out()
    pipeline.gate()
    pipeline.report()


if __name__ == "__main__":
    run_job(__doc__, work)
