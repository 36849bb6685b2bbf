"""Joining Ray: the cluster that is named or that submitted this job, else a Ray of the job's own on this machine."""

import logging
import os
import re
import resource
import signal
import threading
from contextlib import nullcontext
from typing import Any

import grpc
import ray
from ray._private import auto_init_hook
from ray._private.grpc_utils import init_grpc_channel
from ray._private.services import canonicalize_bootstrap_address
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

from lpc_ray.errors import ClusterError, ConfigError
from lpc_ray.run.plan import Plan
from lpc_ray.terminal import held_back

ANSWER_SECONDS = 10
OPEN_FILES = 1024
DATA_SECONDS = 15
_ADDRESS_VARIABLE = "RAY_ADDRESS"
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/:]+):(?P<port>[0-9]{1,5})")


def connect(plan: Plan) -> None:
    """Join the configured cluster, the one that submitted this job, or start a local Ray.

    Raises: ClusterError for a cluster that cannot be joined or a Ray that does not start, ConfigError for more CPUs than the
    machine has.
    """
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Tune's waits for the trial in progress, which waits on
    cluster = plan.config.cluster
    if join("cluster.address", cluster.address, cluster.local_cpus) is None:
        has = ray.cluster_resources()["CPU"]
        for name, cpus in (("engine", cluster.engine.cpus), ("training", cluster.training.cpus)):
            if cpus > has:
                raise ConfigError(f"cluster.{name}.cpus: got {cpus:g}, wanted at most the {has:g} of this machine")
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def join(where: str, address: str | None, local_cpus: int | None = None) -> str | None:
    """Join the cluster at `address` or RAY_ADDRESS, else start a Ray on this machine; HOST:PORT of the cluster, None for the
    latter. where: as `check_cluster` takes it. Raises: ClusterError.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # Ray Data's actor pool alarms a reader at every start
    auto_init_hook.enable_auto_connect = (
        False  # a late call of a thread would start another Ray after the end of this one
    )
    check_open_files()
    found = check_cluster(where, address)
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if found:
        _start_ray(f"a cluster at {found}", address=found, **quiet)
    else:
        _start_ray("a local Ray", address="local", num_cpus=local_cpus, include_dashboard=True, **quiet)
    return found


def leave() -> None:
    """Leave the cluster, and end a Ray of this program's own; nothing is done where none was joined.

    Ray Data's threads, which outlive an interrupted dataset for a moment, are waited for up to `DATA_SECONDS`: a call of theirs
    that meets Ray's end may end this process.
    """
    for thread in threading.enumerate():
        if thread.name.startswith("StreamingExecutor"):
            thread.join(DATA_SECONDS)
    ray.shutdown()


def check_cluster(where: str, address: str | None) -> str | None:
    """HOST:PORT of the cluster that `address`, or RAY_ADDRESS where it leaves that open, names; None for none.

    where: what to call `address` in an error. Raises: ClusterError when no Ray answers there within `ANSWER_SECONDS`; Ray's
    own `init` would try for minutes.
    """
    if not address or (address == "auto" and os.environ.get(_ADDRESS_VARIABLE)):
        where, address = _ADDRESS_VARIABLE, os.environ.get(_ADDRESS_VARIABLE)
    if not address or address == "local":
        return None
    named = f"{where} {address!r}"
    parts = _HOST_PORT.fullmatch(address)
    if address != "auto" and not (parts and 1 <= int(parts["port"]) <= 65535):
        raise ClusterError(f"{named}: wanted HOST:PORT of a Ray cluster's head, or auto")
    try:
        host_port = canonicalize_bootstrap_address(address)
    except (ValueError, OSError) as error:
        raise ClusterError(f"{named}: got {_one_line(str(error))}, wanted a Ray cluster's head") from error
    reason = _why_silent(host_port) if host_port else None
    if reason is not None:
        raise ClusterError(f"{named}: got {reason}, wanted a Ray cluster's head at {host_port}")
    return host_port


def check_open_files() -> None:
    """Raise this process's limit of open files to what Ray needs; its processes would wait for each other in silence.

    Raises: ClusterError where the system does not let it.
    """
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= OPEN_FILES:
        return
    if most != resource.RLIM_INFINITY and most < OPEN_FILES:
        raise ClusterError(f"ulimit -n: got at most {most} open files, wanted {OPEN_FILES} for Ray")
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, most))


def _why_silent(host_port: str) -> str | None:
    """Why no Ray can be spoken to there; None where one answers."""
    channel: Any = init_grpc_channel(host_port)  # typed as grpc's asynchronous one
    question: Any = gcs_service_pb2
    try:
        nodes = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        nodes.CheckAlive(question.CheckAliveRequest(), timeout=ANSWER_SECONDS)
    except grpc.RpcError as error:
        failed: Any = error  # a call that has failed is its own error
        if failed.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"no answer within {ANSWER_SECONDS} s"
        if failed.code() == grpc.StatusCode.UNAUTHENTICATED:
            return None  # it is there, and Ray finds its tokens itself
        return _one_line(failed.details() or failed.code().name).rpartition("last error: ")[2]
    finally:
        channel.close()
    return None


def _start_ray(wanted: str, **options: Any) -> None:
    """Raises: ClusterError, for a cluster that takes no driver, or a machine too busy for Ray's own processes."""
    try:
        with held_back() if options["address"] == "local" else nullcontext():
            ray.init(**options)
    except SystemExit as signalled:  # by Ray's own handler of SIGTERM
        raise KeyboardInterrupt from signalled
    except Exception as error:  # Ray raises plain Exception for a dashboard that is late
        ray.shutdown()
        words = _one_line(str(error))
        raise ClusterError(f"{wanted}: got {type(error).__name__} from Ray, wanted a cluster: {words}") from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` and `ray job stop` end a job as Ctrl-C does


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
