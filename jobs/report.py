#!/usr/bin/env python
"""The report alone: tables and plots from what the run's store holds."""

from lpc_ray.cli import run_job


def work(plan, run):
    from lpc_ray.adapters.pipeline import run_stages

    run_stages(plan, run, "report")


if __name__ == "__main__":
    run_job(__doc__, work)
