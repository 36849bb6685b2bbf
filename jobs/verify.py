#!/usr/bin/env python
"""Verification alone: the baselines, and the best step of every trained arm, on the held-out cases and off its source."""

from lpc_ray.cli.jobs import run_job


def work(plan, run):
    from lpc_ray.adapters.pipeline.pipeline import run_stages

    run_stages(plan, run, "baselines", "held_out", "gate")


if __name__ == "__main__":
    run_job(__doc__, work)
