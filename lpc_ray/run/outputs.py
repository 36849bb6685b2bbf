"""Whether a run can be written where its config wants it, found out without writing anything."""

import os
from urllib.parse import urlsplit

from lpc_ray.config.job import JobConfig
from lpc_ray.errors import ConfigError
from lpc_ray.storage import Store, check_room

_INNER = 200  # bytes of the longest path below a run's folder
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


def check_outputs(config: JobConfig, store: Store) -> None:
    """store: the run's. Raises: StorageError for a local folder in which none could be made, ConfigError for tracking that is
    neither a server nor a database, or that a remote store lacks.
    """
    if store.is_local:
        check_room(store.path(), _INNER)
    uri = config.tracking.uri
    if uri is None:
        if not store.is_local:
            raise ConfigError(
                f"tracking.uri: got none, wanted a server, because the store {store} is not a local folder"
            )
        return
    try:
        address = urlsplit(uri)
        known = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:  # no port, or half an IPv6 address
        known, address = False, urlsplit("")
    database = address.scheme.partition("+")[0]
    if not known and database not in _DATABASES:
        raise ConfigError(f"tracking.uri: got {uri!r}, wanted an MLflow server (http://…) or database (sqlite:///…)")
    if database == "sqlite" and address.path.startswith("/"):
        file = address.path[1:]
        if os.path.isdir(file):
            raise ConfigError(f"tracking.uri: got {uri!r}, a folder, wanted a database's file")
        check_room(os.path.dirname(os.path.abspath(file)), 0)
