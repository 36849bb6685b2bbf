"""Who may ask for what: API key → tenant → handles, and how many requests a tenant may have open at once."""

import hmac
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import yaml

from lpc_ray.config.loading import UniqueKeyLoader
from lpc_ray.errors import ConfigError
from lpc_ray.serving.refusal import Refusal

logger = logging.getLogger("ray.serve")
_HASHED = "sha256:"
_KEY = re.compile(r"[!-~]{8,}")
_TENANT_FIELDS = {"keys", "handles", "max_concurrent", "share_prompt_cache", "bare_model"}
_RELOAD_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """handles: glob patterns of what it may use and see. max_concurrent: open requests, None for no limit.

    share_prompt_cache: its blocks on the device are shared with all other tenants that set this, and each of them can tell,
    by time and by `cached_tokens`, whether another has sent a text. bare_model: whether it may use the model without a prefix.
    role: an admin manages prefixes, `metrics` reads the figures and nothing else.
    """

    name: str
    handles: tuple[str, ...] = ("*",)
    max_concurrent: int | None = None
    share_prompt_cache: bool = False
    bare_model: bool = True
    role: Literal["client", "admin", "metrics"] = "client"

    def may_use(self, handle: str) -> bool:
        return any(fnmatchcase(handle, pattern) for pattern in self.handles)


ADMIN = Tenant("admin", role="admin")
LOCAL = Tenant("local")
_METRICS = Tenant("metrics", (), bare_model=False, role="metrics")


class Keys:
    """What a key file says; it keeps SHA-256 digests of keys, never a key.

    The file is YAML: `admin_keys: [...]`, `metrics_keys: [...]` and `tenants: {name: {keys: [...], handles: [globs],
    max_concurrent: 8, share_prompt_cache: false, bare_model: true}}`. A key is written as it is or as
    `sha256:<hex of its SHA-256>`.
    Raises: ConfigError that names the entry, never a key.
    """

    def __init__(self, path: Path | str):
        try:
            raw = yaml.load(Path(path).read_text(encoding="utf-8"), UniqueKeyLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            raise ConfigError(f"key file {path}: cannot be read: {type(error).__name__}") from error
        if not isinstance(raw, dict) or set(raw) - {"admin_keys", "metrics_keys", "tenants"}:
            raise ConfigError(f"key file {path}: wanted the fields admin_keys, metrics_keys and tenants, and no others")
        self._tenants: list[tuple[bytes, Tenant]] = []
        for field, tenant in (("admin_keys", ADMIN), ("metrics_keys", _METRICS)):
            self._add(raw.get(field) or [], tenant, f"key file {path}: {field}")
        tenants = raw.get("tenants") or {}
        if not isinstance(tenants, dict):
            raise ConfigError(f"key file {path}: tenants: wanted names, each with its fields")
        for name, fields in tenants.items():
            where = f"key file {path}: tenants.{name}"
            if str(name) in (ADMIN.name, LOCAL.name, _METRICS.name):
                raise ConfigError(f"{where}: this name is the server's own")
            self._add(
                fields.get("keys") if isinstance(fields, dict) else None, _tenant(str(name), fields, where), where
            )
        if not self._tenants:
            raise ConfigError(f"key file {path}: got no key")
        if len({digest for digest, _ in self._tenants}) != len(self._tenants):
            raise ConfigError(f"key file {path}: one key is given twice")

    def _add(self, keys: Any, tenant: Tenant, where: str) -> None:
        if not isinstance(keys, list) or not all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys):
            raise ConfigError(
                f"{where}: wanted a list of keys of at least 8 printable ASCII characters, without spaces"
            )
        for key in keys:
            try:
                hashed = key.startswith(_HASHED)
                digest = bytes.fromhex(key.removeprefix(_HASHED)) if hashed else sha256(key.encode()).digest()
            except ValueError:
                digest = b""
            if len(digest) != 32:
                raise ConfigError(f"{where}: wanted 64 hexadecimal digits after {_HASHED!r}")
            self._tenants.append((digest, tenant))

    def authenticate(self, authorization: str | None) -> Tenant:
        """The tenant of an `Authorization: Bearer <key>` header; every key of the file is compared, in constant time.

        Raises: Refusal 401.
        """
        scheme, _, key = (authorization or "").partition(" ")
        offered = sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for digest, tenant in self._tenants:
            if hmac.compare_digest(digest, offered):
                found = tenant
        if found is None or scheme.lower() != "bearer":
            message = "no such API key" if authorization else "wanted a header 'Authorization: Bearer <key>'"
            raise Refusal(401, "invalid_api_key", message)
        return found


class KeyFile:
    """The keys of a file as it is now: a changed file is read again, and a broken one leaves the keys as they were."""

    def __init__(self, path: Path | str):
        """Raises: as `Keys`."""
        self._path = Path(path)
        self._seen, self._keys = self._stat(), Keys(path)
        self._looked = time.monotonic()

    def current(self) -> Keys:
        """Looks at the file at most once a second."""
        if time.monotonic() - self._looked >= _RELOAD_SECONDS:
            self._looked = time.monotonic()
            seen = self._stat()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._keys = Keys(self._path)
                    logger.info("key file %s: read again", self._path)
                except ConfigError as error:
                    logger.error("%s; the keys from before stay", error)
        return self._keys

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def _tenant(name: str, fields: Any, where: str) -> Tenant:
    if not isinstance(fields, dict) or set(fields) - _TENANT_FIELDS:
        raise ConfigError(f"{where}: wanted only the fields {', '.join(sorted(_TENANT_FIELDS))}")
    handles, limit = fields.get("handles"), fields.get("max_concurrent")
    if not isinstance(handles, list) or not all(isinstance(pattern, str) for pattern in handles):
        raise ConfigError(f"{where}.handles: wanted a list of glob patterns")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ConfigError(f"{where}.max_concurrent: got {limit!r}, wanted a whole number of at least 1")
    flags = {field: fields[field] for field in ("share_prompt_cache", "bare_model") if field in fields}
    for field, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{where}.{field}: got {value!r}, wanted true or false")
    return Tenant(name, tuple(handles), limit, **flags)


def require_admin(tenant: Tenant) -> None:
    """Raises: Refusal 403."""
    if tenant.role != "admin":
        raise Refusal(403, "admin_required", f"tenant {tenant.name!r} may not do this: wanted an admin key")


def require_metrics(tenant: Tenant) -> None:
    """Raises: Refusal 403."""
    if tenant.role not in ("admin", "metrics"):
        raise Refusal(403, "metrics_required", f"tenant {tenant.name!r} may not do this: wanted a metrics or admin key")


def require_client(tenant: Tenant) -> None:
    """Raises: Refusal 403."""
    if tenant.role == "metrics":
        raise Refusal(403, "client_required", "a metrics key reads /metrics only")


class Concurrency:
    """Counts each tenant's open requests; one with several prompts or samples counts as so many."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def admit(self, tenant: Tenant, requests: int = 1) -> Iterator[None]:
        """So many open requests more, until the block ends.

        Raises: Refusal 429 when the tenant may not have so many now, 400 when it never may.
        """
        limit = tenant.max_concurrent
        if limit is not None and requests > limit:
            message = (
                f"got a request for {requests} replies, wanted at most {limit}: tenant {tenant.name!r} may have no more"
            )
            raise Refusal(400, "too_many_sequences", message, param="n")
        if limit is not None and self._open[tenant.name] + requests > limit:
            raise Refusal(
                429,
                "too_many_requests",
                f"tenant {tenant.name!r} has {self._open[tenant.name]} requests open and asked for {requests} more, "
                f"wanted at most {limit}",
                retry_after=1,
            )
        self._open[tenant.name] += requests
        try:
            yield
        finally:
            self._open[tenant.name] -= requests

    def open_requests(self) -> int:
        return self._open.total()
