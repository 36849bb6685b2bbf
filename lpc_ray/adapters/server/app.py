"""The Ray Serve application, and a server that drains before it stops. `serve/app.py` gives both their config file."""

import argparse
import json
import logging
import os
import signal
import ssl
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from lpc_ray.config.loading import read
from lpc_ray.errors import ConfigError
from lpc_ray.home import settle
from lpc_ray.report.files import REPORT
from lpc_ray.run.folder import RunFolder
from lpc_ray.serving.doors import ADMIN_KEY_FILE, admin_key
from lpc_ray.serving.own_folder import check_root, remove_ownerless
from lpc_ray.serving.settings import ServerSettings, server_settings
from lpc_ray.serving.tenants import Keys
from lpc_ray.storage import Store
from lpc_ray.terminal import Parser, repeated, uninterrupted

APP = "lpc_ray"
INGRESS_CPUS = 0.1
_LOOK_SECONDS = 0.5
DIRECT_STREAMING = "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING"


def build(args: dict[str, Any]):
    """The application. args: fields of `ServerSettings`. Raises: ConfigError."""
    settings = checked(args)
    admin_key_digest = sha256(_local_key(settings).encode()).digest() if settings.keys is None else None
    from ray import serve
    from ray.serve.llm import build_llm_deployment

    from lpc_ray.adapters.server.ingress import Ingress, app
    from lpc_ray.adapters.server.replica import PrefixServer

    server = build_llm_deployment(
        llm_config(settings), deployment_cls=PrefixServer, bind_kwargs={"settings": settings}, name_prefix="prefixes:"
    )
    # Decorating the class where it stands would pickle it before the rest of its module exists.
    deploy = serve.deployment(
        name="Ingress",
        max_ongoing_requests=2048,
        graceful_shutdown_timeout_s=120,
        ray_actor_options={"num_cpus": INGRESS_CPUS},
    )
    return deploy(serve.ingress(app)(Ingress)).bind(server, settings, admin_key_digest)


def _local_key(settings: ServerSettings) -> str:
    """The admin key of a server without a key file; shown when it is made. Raises: ConfigError."""
    registry = Store(settings.registry_url)
    if not registry.is_local:
        raise ConfigError(f"keys: got none, wanted a key file where the registry is no local folder ({registry})")
    key, is_new = admin_key(Path(registry.path("")))
    where = Path(registry.path(ADMIN_KEY_FILE))
    print(f"admin key: {key} (kept in {where})" if is_new else f"admin key: in {where}")
    return key


def checked(args: dict[str, Any]) -> ServerSettings:
    """The settings, and what they name, before anything is started. Raises: ConfigError."""
    if os.environ.get(DIRECT_STREAMING, "0") not in ("", "0"):
        raise ConfigError(f"{DIRECT_STREAMING} is set, wanted it unset: clients would reach the engine past all checks")
    settings = server_settings(args)
    check_root(settings.host_tier, make="RAY_ADDRESS" not in os.environ)  # on a cluster, replicas may run elsewhere
    if settings.keys is not None:
        Keys(settings.keys)
    return settings


def config_args(config: Path) -> dict[str, Any]:
    """The arguments of the first application in `config`, a file in Ray Serve's format. Raises: ConfigError."""
    try:
        return dict(read(config)["applications"][0]["args"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigError(f"config {config}: wanted a list of applications, the first with args") from error


def llm_config(settings: ServerSettings):
    """Ray Serve LLM's own configuration of the deployment that runs the engine."""
    from ray.serve.llm import LLMConfig

    from lpc_ray.adapters.vllm.engine import whole_prompts
    from lpc_ray.model.embedded import resolve_model

    scaling = (
        {"autoscaling_config": settings.autoscaling} if settings.autoscaling else {"num_replicas": settings.replicas}
    )
    bundle = {"CPU": settings.replica_cpus} if settings.device == "cpu" else {"CPU": settings.replica_cpus, "GPU": 1}
    return LLMConfig(
        model_loading_config={"model_id": settings.served_name, "model_source": resolve_model(settings.model)},
        accelerator_config={"kind": settings.device},  # pyright: ignore[reportArgumentType]  # Pydantic reads it
        placement_group_config={"bundles": [bundle]},
        deployment_config={
            **scaling,
            "max_ongoing_requests": settings.max_ongoing_requests,
            "health_check_period_s": settings.health_check_period_s,
            "graceful_shutdown_timeout_s": 120,
            "ray_actor_options": {"num_cpus": 0},
        },
        runtime_env={"env_vars": _engine_environment(settings)},
        experimental_configs={"stream_batching_interval_ms": 0},  # the replica joins events by itself
        log_engine_metrics=False,  # vLLM's own go to prometheus_client, and so to our /metrics
        engine_kwargs={
            "dtype": settings.dtype,
            "revision": settings.revision,
            "load_format": "hf",  # the files that the trainer reads, and the identity is of
            "max_model_len": settings.max_model_len,
            "max_num_seqs": settings.max_num_seqs,
            "enable_prefix_caching": True,
            "disable_sliding_window": True,
            "enable_prompt_tokens_details": True,
            "kv_transfer_config": {
                "kv_connector": "LearnedPrefixConnector",
                "kv_connector_module_path": "lpc_ray.adapters.vllm.connector",
                "kv_role": "kv_consumer",
                "kv_load_failure_policy": "fail",
            },
            **(whole_prompts(settings.max_model_len) if settings.device == "cpu" else {}),
            **_tools(settings),
            **settings.engine,
            "trust_remote_code": False,
        },
    )


def _tools(settings: ServerSettings) -> dict[str, Any]:
    if settings.tool_call_parser is None:
        return {}
    return {"enable_auto_tool_choice": True, "tool_call_parser": settings.tool_call_parser}


def _engine_environment(settings: ServerSettings) -> dict[str, str]:
    found = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gib),
    }
    if settings.threads is not None:
        found |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(settings.threads)}
    return found


def demo_prefix(run: Path) -> str:
    """Digest of the best arm of a finished run, by its verified score. Raises: ConfigError when there is none."""
    try:
        arms = json.loads((run / REPORT).read_text(encoding="utf-8"))["arms"]
        return max((arm for arm in arms if arm["digest"]), key=lambda arm: arm["score"] or 0)["digest"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{run}: holds no finished run (make demo makes one): {type(error).__name__}") from error


def main(config: Path, description: str | None) -> None:
    """Serve by the command line until a signal comes. config: what settings have where the line names none.

    Raises: LPCError; KeyboardInterrupt for a signal while it starts.
    """
    parser = Parser(prog="python -m serve.app", description=description)
    parser.add_argument("--run", type=Path, help="a finished run: its best prefix is served as 'demo'")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s); others need keys"
    )
    parser.add_argument("--port", type=_port, default=8000, help="(default: %(default)s)")
    parser.add_argument("--tls-cert", help="certificate file, for HTTPS; with --tls-key")
    parser.add_argument("--tls-key", help="private key file of the certificate")
    parser.add_argument("setting", nargs="*", help="any field of the settings, such as replicas=2")
    options = parser.parse_intermixed_args()
    if moved := settle():
        print(moved, flush=True)
    _serve(options, config)


def _serve(options: argparse.Namespace, config: Path) -> None:
    args = {**config_args(config), **dict(_setting(text) for text in options.setting)}
    if options.run is not None:
        artifacts = RunFolder(Store(str(options.run))).artifacts
        args |= {"artifacts": str(artifacts), "prefixes": {"demo": demo_prefix(options.run)}}
    settings = checked(args)
    if settings.keys is None and options.host != "127.0.0.1":
        raise ConfigError(f"--host {options.host}: without a key file the server listens on 127.0.0.1 only")
    tls = _tls(options.tls_cert, options.tls_key)
    from ray import serve

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    from lpc_ray.adapters.ray.cluster import join, leave
    from lpc_ray.adapters.segments import Segments

    segments, cluster = Segments(), None
    try:
        with repeated(segments.look, _LOOK_SECONDS):
            cluster = join("RAY_ADDRESS", None)
            if cluster is None:
                _check_fits(settings)
            serve.start(http_options={"host": options.host, "port": options.port, **tls})
            serve.run(build(settings.model_dump()), name=APP)
        where = f"http{'s' if tls else ''}://{options.host}:{options.port}"
        whom = "" if settings.keys else " (this machine only: no key file)"
        print(f"serving {settings.served_name} at {where}{whom}", flush=True)
        for line in serve.get_app_handle(APP).notices.remote().result():
            print(line, flush=True)
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        stop.wait()
        serve.get_app_handle(APP).drain.remote().result()
    finally:
        with uninterrupted():
            segments.look()
            if cluster:  # a Ray of its own ends as a whole
                serve.shutdown()
            leave()
            segments.sweep()
            if cluster is None:
                remove_ownerless(settings.host_tier)


def _check_fits(settings: ServerSettings) -> None:
    """Raises: ConfigError for replicas that want more CPUs than this machine has; Ray would wait for them in silence."""
    import ray

    least = settings.autoscaling.get("min_replicas", 1) if settings.autoscaling else settings.replicas
    wanted, has = least * settings.replica_cpus + INGRESS_CPUS, ray.cluster_resources()["CPU"]
    if wanted > has:
        raise ConfigError(
            f"replicas: got {least} with {settings.replica_cpus:g} CPUs each and {INGRESS_CPUS:g} for the HTTP side, wanted at "
            f"most the {has:g} of this machine; replica_cpus may be a fraction"
        )


def _tls(certificate: str | None, key: str | None) -> dict[str, str]:
    """Ray Serve's options for HTTPS. Raises: ConfigError."""
    if certificate is None and key is None:
        return {}
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key: got one of them, wanted both")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        raise ConfigError(f"--tls-cert {certificate}, --tls-key {key}: {error.strerror or error}") from error
    return {"ssl_certfile": certificate, "ssl_keyfile": key}


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a port from 1 to 65535")
    return int(text)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"setting: got {text!r}, wanted name=value")
    try:
        return name, yaml.safe_load(value)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"setting {text[:80]!r}: the value is not YAML") from error
