#!/usr/bin/env python
"""Induction and the sweep: trains and verifies every arm that has not ended."""

from lpc_ray.cli.jobs import run_job


def work(plan, run):
    from lpc_ray.adapters.pipeline.induce import make_traces
    from lpc_ray.adapters.pipeline.pipeline import run_stages
    from lpc_ray.adapters.pipeline.train import train_arms

    run_stages(plan, run, [make_traces, train_arms])


if __name__ == "__main__":
    run_job(__doc__, work)
