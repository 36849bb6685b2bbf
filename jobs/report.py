#!/usr/bin/env python
"""Reports without running anything: of one run from its store, or of several runs from their result files.

With --results [NAME=]FILE ... [--out FOLDER] the files, own or foreign, give one page that compares their runs.
"""

import sys

from lpc_ray.cli.jobs import run_job
from lpc_ray.home import settle
from lpc_ray.terminal import Parser, exit_on_error


def work(plan, run):
    from lpc_ray.adapters.pipeline.pipeline import run_stages
    from lpc_ray.adapters.pipeline.report import write_report

    run_stages(plan, run, [write_report])


def compare(arguments: list[str]) -> None:
    from lpc_ray.config.shares import THRESHOLDS
    from lpc_ray.report.comparison import write_comparison
    from lpc_ray.report.results.read import read_results
    from lpc_ray.storage import Store

    parser = Parser(description=__doc__)
    parser.add_argument(
        "--results",
        nargs="+",
        required=True,
        metavar="[NAME=]FILE",
        help="JSON result files, own or foreign; files of one run are merged, and NAME=FILE names the run of a file, such as "
        "first=runs/a/report.json second=runs/b/report.json",
    )
    parser.add_argument("--out", default="runs/comparison", help="folder of the files made (default: %(default)s)")
    parser.add_argument("--title", default="lpc_ray: runs compared")
    parser.add_argument(
        "--thresholds", nargs="+", default=THRESHOLDS, metavar="SHARE", help="such as 0.5, 50%% or 12/19"
    )
    options = parser.parse_args(arguments)
    with exit_on_error():
        if moved := settle():
            print(moved, file=sys.stderr)
        write_comparison(Store(options.out), options.title, read_results(options.results), options.thresholds)
        print(f"{options.out}/comparison.html")


if __name__ == "__main__":
    if "--results" in sys.argv:
        compare(sys.argv[1:])
    else:
        run_job(__doc__, work)
