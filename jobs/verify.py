#!/usr/bin/env python
"""Verification alone: the baselines, and the best step of every trained arm, on the held-out cases and off its source."""

from lpc_ray.cli.jobs import run_job


def work(plan, run):
    from lpc_ray.adapters.pipeline.pipeline import run_stages
    from lpc_ray.adapters.pipeline.verify import gate_arms, verify_baselines, verify_held_out

    run_stages(plan, run, [verify_baselines, verify_held_out, gate_arms])


if __name__ == "__main__":
    run_job(__doc__, work)
