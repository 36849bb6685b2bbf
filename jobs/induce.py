#!/usr/bin/env python
"""Induction alone: source documents to stored traces."""

from lpc_ray.cli import run_job


def work(plan, run):
    from lpc_ray.adapters.pipeline import Pipeline, connect
    from lpc_ray.console import Console

    connect(plan)
    pipeline = Pipeline(plan, run, Console())
    pipeline.induce()


if __name__ == "__main__":
    run_job(__doc__, work)
