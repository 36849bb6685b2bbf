#!/usr/bin/env python
"""Verification alone: the baselines, and the best step of every trained arm, on the held-out cases and off its source."""

from lpc_ray.cli import run_job


def work(plan, run):
    from lpc_ray.adapters.pipeline import Pipeline, connect
    from lpc_ray.console import Console

    connect(plan)
    pipeline = Pipeline(plan, run, Console())
    pipeline.baselines()
    pipeline.held_out()
    pipeline.gate()


if __name__ == "__main__":
    run_job(__doc__, work)
