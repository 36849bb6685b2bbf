"""MLflow: a parent run per job, a child per arm, written by the driver alone.

A rerun finds its runs again by fingerprint and arm id and logs only what is missing, so no step is logged twice.
"""

import logging
import shlex
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.store.db.db_types import DATABASE_ENGINES
from mlflow.tracking import MlflowClient
from mlflow.utils.time import get_current_time_millis
from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from lpc_ray.config.job import JobConfig
from lpc_ray.errors import ConfigError, StorageError
from lpc_ray.run.arms import Arm
from lpc_ray.run.folder import RunFolder

ANSWER_SECONDS = 10
_TUNE = {"score": "tune_score", "passed": "tune_passed"}
_TRAINING = ("loss", "grad_norm", "targets_seen", "tokens_seen", "training_seconds")


def check_tracking(config: JobConfig, run: RunFolder) -> None:
    """Ask the tracking server that is named for an answer, now rather than after an hour of work.

    Raises: ConfigError when the store is remote and no server is named, StorageError when none answers within
    `ANSWER_SECONDS`; MLflow's own client would try for minutes.
    """
    uri = config.tracking.uri
    if not uri:
        if not run.store.is_local:
            raise ConfigError(f"tracking.uri: got none, wanted a server, because the store {run} is not a local folder")
        return
    answers: list[Exception | None] = []

    def ask() -> None:
        try:
            _ask(uri)
            answers.append(None)
        except Exception as error:  # every kind of store has a client that fails in its own way
            answers.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS)
    reason = answers[0] if answers else TimeoutError(f"no answer within {ANSWER_SECONDS} s")
    if reason is not None:
        raise _unusable(uri, reason) from None


def _unusable(uri: str, error: Exception) -> StorageError:
    """One line for what MLflow met, in the words of the error that began it; MLflow's and SQLAlchemy's hold the statement."""
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    got = " ".join(str(first).partition("\n(Background on")[0].split())[:300]
    return StorageError(f"tracking.uri {shown(uri)}: got {got}, wanted an MLflow server or database")


def _ask(uri: str) -> None:
    """Raises at once where MLflow would try again and again."""
    address = urlsplit(uri)
    if address.scheme in ("http", "https"):
        port = address.port or {"http": 80, "https": 443}[address.scheme]
        socket.create_connection((address.hostname, port), ANSWER_SECONDS).close()
    elif "://" in uri and address.scheme.partition("+")[0] in DATABASE_ENGINES:
        url = make_url(uri)
        if url.get_backend_name() == "sqlite" and url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        create_engine(url).connect().close()
        return  # making its tables may take longer than an answer should
    MlflowClient(tracking_uri=uri).search_experiments(max_results=1)


def own_database(run: RunFolder) -> str:
    """The URL of MLflow's database inside a run in a local folder.

    With the driver's name, because MLflow makes the parent folder of what follows `sqlite:///` as that is spelled, with all
    its escapes.
    """
    return URL.create("sqlite+pysqlite", database=run.store.path("mlflow.db")).render_as_string()


def own_files(run: RunFolder) -> str:
    """The URL of MLflow's files inside a run in a local folder."""
    return Path(run.store.path("mlflow_artifacts")).as_uri()


def where_tracked(uri: str) -> str:
    """Where to look: the server's address, else the command that shows a database."""
    address = shown(uri)
    return (
        address
        if urlsplit(uri).scheme in ("http", "https")
        else f"mlflow ui --backend-store-uri {shlex.quote(address)}"
    )


def shown(uri: str) -> str:
    """`uri` without its password."""
    address = urlsplit(uri)
    return uri.replace(f":{address.password}@", ":***@", 1) if address.password else uri


class Tracker:
    """The MLflow runs of one job, made or found at once. Raises: StorageError for a tracking store that MLflow cannot use."""

    def __init__(self, config: JobConfig, fingerprint: str, run: RunFolder):
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("mlflow.store.db").setLevel(logging.CRITICAL)  # prints a traceback of what it raises
        self.uri = config.tracking.uri or own_database(run)
        with self._explaining():
            self._open(config, fingerprint, run)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (MlflowException, SQLAlchemyError, OSError) as error:
            raise _unusable(self.uri, error) from error

    def _open(self, config: JobConfig, fingerprint: str, run: RunFolder) -> None:
        if not config.tracking.uri:
            Path(run.store.path()).mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(tracking_uri=self.uri)
        experiment = self._client.get_experiment_by_name(config.tracking.experiment)
        location = None if config.tracking.uri else own_files(run)
        self._experiment = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(config.tracking.experiment, artifact_location=location)
        )
        self._parent = self._run({"lpc.fingerprint": fingerprint, "lpc.job": config.name}, config.name)
        self._log_params(self._parent, {"fingerprint": fingerprint, **_flat(config.recipe.model_dump(mode="json"))})
        self._children: dict[str, str] = {}

    def _child(self, arm: Arm) -> str:
        """The child run of an arm, made or found."""
        if arm.id not in self._children:
            tags = {"lpc.arm": arm.id, "mlflow.parentRunId": self._parent}
            self._children[arm.id] = self._run(tags, arm.name)
            fields = (
                "induction",
                "objective",
                "initializer",
                "num_tokens",
                "seed",
                "initializer_seed",
                "induction_seed",
            )
            self._log_params(self._children[arm.id], {field: getattr(arm, field) for field in fields})
        return self._children[arm.id]

    def log_step(self, arm: Arm, result: dict[str, Any]) -> None:
        """The metrics of a verified checkpoint, at its optimizer step, once."""
        names = {**_TUNE, **{name: name for name in _TRAINING}}
        values = {metric: result[name] for name, metric in names.items() if result.get(name) is not None}
        metrics = [
            Metric(name, float(value), get_current_time_millis(), result["step"]) for name, value in values.items()
        ]
        tag = RunTag(f"artifact.step_{result['step']}", result["digest"])
        with self._explaining():
            run = self._child(arm)
            known = {metric.step for metric in self._client.get_metric_history(run, _TUNE["score"])}
            if result["step"] not in known:
                self._client.log_batch(run, metrics=metrics, tags=[tag])

    def end_arm(self, arm: Arm, status: str, artifact_folder: str | None) -> None:
        """Close the child run; `artifact_folder`: the LPC at its best step."""
        with self._explaining():
            run = self._child(arm)
            self._client.set_tag(run, "lpc.status", status)
            if artifact_folder is not None:
                self._client.log_artifacts(run, artifact_folder, artifact_path="lpc")
            self._client.set_terminated(run, "FINISHED" if status in ("finished", "stopped") else "FAILED")

    def end(self, report_files: dict[str, bytes], figures: dict[str, float]) -> None:
        """The report and its figures into the parent run, which is closed."""
        with self._explaining():
            for name, data in report_files.items():
                self._client.log_text(self._parent, data.decode(), f"report/{name}")
            known = self._client.get_run(self._parent).data.metrics
            new = [
                Metric(name, value, get_current_time_millis(), 0)
                for name, value in figures.items()
                if known.get(name) != value
            ]
            self._client.log_batch(self._parent, metrics=new)
            self._client.set_terminated(self._parent, "FINISHED")

    def _run(self, tags: dict[str, str], name: str) -> str:
        condition = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        found = self._client.search_runs([self._experiment], condition, max_results=1)
        if found:
            self._client.update_run(found[0].info.run_id, status="RUNNING")
            return found[0].info.run_id
        return self._client.create_run(self._experiment, tags=tags, run_name=name).info.run_id

    def _log_params(self, run: str, params: dict[str, Any]) -> None:
        known = self._client.get_run(run).data.params
        new = [Param(key, str(value)[:500]) for key, value in params.items() if key not in known]
        for start in range(0, len(new), 100):
            self._client.log_batch(run, params=new[start : start + 100])


def _flat(tree: Any, path: str = "recipe") -> dict[str, Any]:
    if isinstance(tree, dict) and tree:
        return {key: value for name, inner in tree.items() for key, value in _flat(inner, f"{path}.{name}").items()}
    return {path: tree}
