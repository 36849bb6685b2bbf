#!/usr/bin/env python
"""The main job: from a document to verified, tracked prefixes and a report."""

from lpc_ray.cli import run_job


def work(plan, run):
    from lpc_ray.adapters.pipeline import run_stages

    run_stages(plan, run, "induce", "baselines", "sweep", "held_out", "report")


if __name__ == "__main__":
    run_job(__doc__, work)
