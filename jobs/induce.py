#!/usr/bin/env python
"""Induction alone: source documents to stored traces. With --preview N: N chunks' worth, shown and costed, not stored."""

from lpc_ray.cli.jobs import run_job


def work(plan, run):
    from lpc_ray.adapters.pipeline.induce import make_traces, show_quality
    from lpc_ray.adapters.pipeline.pipeline import run_stages

    run_stages(plan, run, [make_traces, show_quality])


def preview(plan, count):
    from lpc_ray.adapters.pipeline.preview import preview_induction
    from lpc_ray.adapters.ray.cluster import connect
    from lpc_ray.terminal import Console

    connect(plan)
    preview_induction(plan, count, Console())


if __name__ == "__main__":
    run_job(__doc__, work, preview=preview)
