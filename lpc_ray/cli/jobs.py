"""What every job does first: arguments, config, plan, dry run, and one line for an error. Imports nothing heavy."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import yaml

from lpc_ray.config.job import JobConfig, load
from lpc_ray.config.suite import PatientsConfig, SuiteConfig
from lpc_ray.errors import ConfigError, StorageError
from lpc_ray.home import check_sockets, own_home, settle
from lpc_ray.run.checkpoints import ArmStore
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.outputs import check_outputs
from lpc_ray.run.plan import Plan, make_plan
from lpc_ray.sources.folder import in_words
from lpc_ray.sources.text import spelled
from lpc_ray.storage import Store, absolute, check_url
from lpc_ray.suite.jobs import focus_job, load_many, patient_jobs
from lpc_ray.terminal import Parser, check_output, exit_on_error, printable

DEFAULT_CONFIG = Path(__file__).resolve().parents[2] / "jobs" / "configs" / "pi_scale.cpu.yaml"
_UPLOADED_COPY = "runtime_resources/working_dir_files"


def run_job(
    description: str | None,
    work: Callable[..., None],
    arguments: list[str] | None = None,
    preview: Callable[..., None] | None = None,
    work_many: Callable[..., None] | None = None,
) -> None:
    """Parse, plan, then call `work(plan, run)`; exits with 2 and one line for an error of the user's.

    work: imports Ray and the rest itself, so that a bad config is refused at once.
    preview: called as `preview(plan, count)` instead where the user asks for `--preview COUNT`.
    work_many: called as `work_many(config, store, unsandboxed)` for a config that names several tasks.
    """
    options = _options(description, arguments, has_preview=preview is not None)
    with exit_on_error():
        moved = settle()
        check_sockets()
        if options.dry_run or getattr(options, "preview", None):
            check_output()
        many = load_many(options.config, options.override)
        if many:
            if work_many is None:
                raise ConfigError(
                    f"config {options.config}: got several tasks, which only jobs/pi_scale.py runs, wanted a job of one"
                )
            if moved and not options.dry_run:
                print(moved, file=sys.stderr)
            _run_many(many, work_many, options)
            return
        config = load(options.config, options.override)
        plan = make_plan(config, options.unsandboxed)
        run = RunFolder(Store(store_url(config)) / config.name)
        check_outputs(config, run.store)
        if moved and not options.dry_run:
            print(moved, file=sys.stderr)
        if options.dry_run:
            _show(plan, run)
        elif preview is not None and options.preview:
            preview(plan, options.preview)
        else:
            tokens, cases = len(plan.source_ids), len(plan.cases)
            print(
                f"{config.name}: {len(plan.arms)} arms, a source of {tokens} tokens, {cases} cases → {run}", flush=True
            )
            _show_left_out(plan)
            work(plan, run)


def _run_many(many: SuiteConfig | PatientsConfig, work_many: Callable[..., None], options: argparse.Namespace) -> None:
    known = {many.suite.focus: focus_job(many)} if isinstance(many, SuiteConfig) else patient_jobs(many)
    store = Store(store_url(next(iter(known.values())))) / many.name
    if options.dry_run:
        from lpc_ray.suite.suite import draw  # loads what draws the page

        for task, job in known.items():
            plan = make_plan(job, options.unsandboxed)
            check_outputs(job, store / task)
            _show(plan, RunFolder(store / task))
        strata = draw(many).picks if isinstance(many, SuiteConfig) else ()
        for pick in strata:
            print(printable(f"{pick.stratum:<8} {pick.task}, skill of {pick.skill_chars} characters"))
        return
    work_many(many, store, options.unsandboxed)


def store_url(config: JobConfig) -> str:
    """Where runs go. A relative folder is relative to the working directory, but in a copy that Ray uploaded for a job,
    which it deletes later, to `~/lpc_ray` of the cluster's user. Raises: StorageError for what is no store.
    """
    url = check_url(config.store.url)
    if "://" in url or os.path.isabs(url):
        return url
    whole = absolute(url)
    url = str(own_home() / "lpc_ray" / url) if _UPLOADED_COPY in whole else whole
    if spelled(url) != url:
        raise StorageError(
            f"store {url}: got a path that is not UTF-8, which MLflow and Ray cannot use; wanted another"
        )
    return url


def _options(description: str | None, arguments: list[str] | None, has_preview: bool) -> argparse.Namespace:
    parser = Parser(description=description)
    parser.add_argument("--config", default=str(DEFAULT_CONFIG), help="job config (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="print config, arms and what exists; do nothing")
    parser.add_argument(
        "--unsandboxed", action="store_true", help="run replies' code without isolation: it may do anything"
    )
    if has_preview:
        parser.add_argument(
            "--preview", type=_count, metavar="N", help="show N chunks' worth and its cost; store nothing"
        )
    parser.add_argument("override", nargs="*", help="any field, such as recipe.training.lr=0.02")
    return parser.parse_intermixed_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a whole number above 0")
    return int(text)


def _show(plan: Plan, run: RunFolder) -> None:
    print(yaml.safe_dump(plan.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
    print(f"fingerprint  {plan.fingerprint}\nprotocol     {plan.protocol}\nrun          {printable(str(run))}")
    print(f"source       {len(plan.documents)} document(s), {len(plan.source_ids)} tokens; {len(plan.cases)} cases")
    _show_left_out(plan)
    print()
    for line in plan.benchmark.caveats():
        print(printable(line))
    for number, arm in enumerate(plan.arms, start=1):
        store = ArmStore(run.arm(arm.id))
        steps = store.steps()
        parts = [name for name in run.traces(arm.traces).names() if name.endswith(".parquet")]
        state = "ended" if store.has_ended(plan.protocol) else f"at step {steps[-1]}" if steps else "new"
        print(f"arm {number:>2}  {arm.name:<40} {arm.id[:12]}  {state}, traces: {'some' if parts else 'none'}")


def _show_left_out(plan: Plan) -> None:
    for line in in_words(plan.left_out):
        print(f"left out     {printable(line)}", flush=True)
    for line in plan.doubts:
        print(f"doubtful     {printable(line)}", flush=True)
