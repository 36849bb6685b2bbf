"""Who may ask for what: API key → tenant → handles, and how many requests a tenant may have open at once."""

import hmac
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from lpc_ray.config.loading import UniqueKeyLoader
from lpc_ray.errors import ConfigError
from lpc_ray.serving.refusal import Refusal

_HASHED = "sha256:"
_KEY = re.compile(r"[!-~]{8,}")
_TENANT_FIELDS = {"keys", "handles", "max_concurrent", "isolate"}


@dataclass(frozen=True, slots=True)
class Tenant:
    """handles: glob patterns of what it may use and see. max_concurrent: open requests, None for no limit.

    isolate: its device blocks are shared with no other tenant, not even for the same prefix.
    """

    name: str
    handles: tuple[str, ...] = ("*",)
    max_concurrent: int | None = None
    isolate: bool = False
    is_admin: bool = False

    def may_use(self, handle: str) -> bool:
        return any(fnmatchcase(handle, pattern) for pattern in self.handles)


LOCAL = Tenant("local", is_admin=True)


class Keys:
    """A key file, read once; it keeps SHA-256 digests of keys, never a key.

    The file is YAML: `admin_keys: [...]` and `tenants: {name: {keys: [...], handles: [globs], max_concurrent: 8,
    isolate: false}}`. A key is written as it is or as `sha256:<hex of its SHA-256>`.
    Raises: ConfigError that names the entry, never a key.
    """

    def __init__(self, path: Path | str):
        try:
            raw = yaml.load(Path(path).read_text(encoding="utf-8"), UniqueKeyLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            raise ConfigError(f"key file {path}: cannot be read: {type(error).__name__}") from error
        if not isinstance(raw, dict) or set(raw) - {"admin_keys", "tenants"}:
            raise ConfigError(f"key file {path}: wanted the fields admin_keys and tenants, and no others")
        self._tenants: list[tuple[bytes, Tenant]] = []
        admin = Tenant("admin", is_admin=True)
        self._add(raw.get("admin_keys") or [], admin, f"key file {path}: admin_keys")
        tenants = raw.get("tenants") or {}
        if not isinstance(tenants, dict):
            raise ConfigError(f"key file {path}: tenants: wanted names, each with its fields")
        for name, fields in tenants.items():
            where = f"key file {path}: tenants.{name}"
            if str(name) in (admin.name, LOCAL.name):
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


def _tenant(name: str, fields: Any, where: str) -> Tenant:
    if not isinstance(fields, dict) or set(fields) - _TENANT_FIELDS:
        raise ConfigError(f"{where}: wanted only the fields {', '.join(sorted(_TENANT_FIELDS))}")
    handles, limit, isolate = fields.get("handles"), fields.get("max_concurrent"), fields.get("isolate", False)
    if not isinstance(handles, list) or not all(isinstance(pattern, str) for pattern in handles):
        raise ConfigError(f"{where}.handles: wanted a list of glob patterns")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ConfigError(f"{where}.max_concurrent: got {limit!r}, wanted a whole number of at least 1")
    if not isinstance(isolate, bool):
        raise ConfigError(f"{where}.isolate: got {isolate!r}, wanted true or false")
    return Tenant(name, tuple(handles), limit, isolate)


def require_admin(tenant: Tenant) -> None:
    """Raises: Refusal 403."""
    if not tenant.is_admin:
        raise Refusal(403, "admin_required", f"tenant {tenant.name!r} may not manage prefixes: wanted an admin key")


class Concurrency:
    """Counts each tenant's open requests; one with several prompts or samples counts as so many."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def admit(self, tenant: Tenant, requests: int = 1) -> Iterator[None]:
        """So many open requests more, until the block ends. Raises: Refusal 429 when the tenant may not have so many."""
        limit = tenant.max_concurrent
        if limit is not None and requests and self._open[tenant.name] + requests > limit:
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
