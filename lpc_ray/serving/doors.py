"""Who a request comes from: a key's tenant, or without a key file whoever is on this machine, by its own hand."""

import os
import re
import secrets
from collections.abc import Collection, Mapping
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path

from lpc_ray.errors import ConfigError
from lpc_ray.serving.refusal import Refusal
from lpc_ray.serving.tenants import ADMIN, LOCAL, KeyFile, Tenant

ADMIN_KEY_FILE = "admin.key"
# What a page elsewhere cannot send, whatever its own name resolves to.
_THIS_MACHINE = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class KeyedDoor:
    """Every request brings a key."""

    def __init__(self, keys: KeyFile):
        self._keys = keys

    def enter(self, headers: Mapping[str, str], peer: str | None) -> Tenant:
        """Raises: Refusal 401."""
        return self._keys.current().authenticate(headers.get("authorization"))


class LocalDoor:
    """No key file: inference for programs on this machine; management for those that bring the admin key.

    A browser is on this machine too, and runs what any page says; so is a proxy, whose clients are not. Hence the request
    must name this machine as its host, come from a page of `origins` or of this server if it comes from a page, and not be
    forwarded.
    """

    def __init__(self, admin_key_digest: bytes, origins: Collection[str] = ()):
        self._digest, self._origins = admin_key_digest, frozenset(origins)

    def enter(self, headers: Mapping[str, str], peer: str | None) -> Tenant:
        """headers: by lower-case name. peer: the address of the connection. Raises: Refusal 403."""
        host = headers.get("host", "")
        if peer is None or not is_loopback(peer) or not _THIS_MACHINE.fullmatch(host):
            raise Refusal(403, "local_only", "this server has no key file and serves programs on its own machine only")
        if any(name in headers for name in _FORWARDED):
            raise Refusal(403, "local_only", "this server has no key file and serves no request that a proxy forwards")
        origin = headers.get("origin")
        if origin is not None and origin not in {*self._origins, f"http://{host}", f"https://{host}"}:
            raise Refusal(
                403, "foreign_origin", f"got a request of a page of {origin[:200]!r}, which is not in `origins`"
            )
        scheme, _, key = headers.get("authorization", "").partition(" ")
        offered = sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        return ADMIN if compare_digest(offered, self._digest) and scheme.lower() == "bearer" else LOCAL


Door = KeyedDoor | LocalDoor


def admin_key(folder: Path) -> tuple[str, bool]:
    """The key that manages a server without a key file, kept in `folder`, and whether it was made now.

    Raises: ConfigError for a file that other users may read, or that cannot be written or read.
    """
    path = folder / ADMIN_KEY_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            return _kept_key(path), False
        key = f"lpc-{secrets.token_urlsafe(24)}"
        with os.fdopen(file, "w", encoding="ascii") as out:
            out.write(f"{key}\n")
        return key, True
    except OSError as error:
        raise ConfigError(f"admin key {path}: {error.strerror}; `keys` names a key file instead") from error


def _kept_key(path: Path) -> str:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(file, encoding="utf-8", errors="replace") as kept:
        if os.fstat(file).st_mode & 0o077:
            raise ConfigError(f"admin key {path}: other users may read it, wanted mode 600")
        key = kept.read().strip()
    if len(key) < 16:
        raise ConfigError(f"admin key {path}: got no key; remove the file and a new one is made")
    return key


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
