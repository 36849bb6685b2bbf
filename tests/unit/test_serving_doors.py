"""Who may come in: keys that change while the server runs, and a server without a key file."""

import os
from hashlib import sha256

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lpc_ray.errors import ConfigError
from lpc_ray.serving import tenants
from lpc_ray.serving.doors import ADMIN_KEY_FILE, KeyedDoor, LocalDoor, admin_key
from lpc_ray.serving.refusal import Refusal
from lpc_ray.serving.tenants import (
    ADMIN,
    LOCAL,
    Concurrency,
    KeyFile,
    Tenant,
    require_admin,
    require_client,
    require_metrics,
)

KEY = "lpc-of-the-admin"
DOOR = LocalDoor(sha256(KEY.encode()).digest(), ("https://notes.example",))
HERE = {"host": "127.0.0.1:8000"}


@pytest.mark.parametrize(
    "headers",
    [
        HERE,
        {"host": "localhost:8000"},
        {"host": "localhost"},
        {"host": "[::1]:8000"},
        {**HERE, "authorization": "Bearer any-key-at-all"},
        {**HERE, "authorization": f"Basic {KEY}"},
        {**HERE, "origin": "http://127.0.0.1:8000"},
        {**HERE, "origin": "https://notes.example"},
    ],
)
def test_a_program_on_this_machine_may_ask_and_not_manage(headers):
    tenant = DOOR.enter(headers, "127.0.0.1")
    assert tenant is LOCAL and tenant.may_use("anything")
    for refused in (require_admin, require_metrics):
        with pytest.raises(Refusal) as caught:
            refused(tenant)
        assert caught.value.status == 403


def test_the_admin_key_manages():
    assert DOOR.enter({**HERE, "authorization": f"Bearer {KEY}"}, "127.0.0.1") is ADMIN


@pytest.mark.parametrize(
    ("headers", "peer"),
    [
        ({"host": "evil.example"}, "127.0.0.1"),  # a page's own name that resolves to this machine
        ({"host": "evil.example:8000", "origin": "http://evil.example:8000"}, "127.0.0.1"),
        ({"host": "127.0.0.1.evil.example"}, "127.0.0.1"),
        ({"host": "localhost.evil.example"}, "127.0.0.1"),
        ({"host": ""}, "127.0.0.1"),
        ({}, "127.0.0.1"),
        ({"host": "127.0.0.1@evil.example"}, "127.0.0.1"),
        (HERE, "10.0.0.7"),
        (HERE, None),
        (HERE, "not an address"),
        ({**HERE, "origin": "http://evil.example"}, "127.0.0.1"),
        ({**HERE, "origin": "null"}, "127.0.0.1"),
        ({**HERE, "origin": "http://127.0.0.1:3000"}, "127.0.0.1"),
        ({**HERE, "origin": "https://notes.example.evil"}, "127.0.0.1"),
        ({**HERE, "x-forwarded-for": "10.0.0.7"}, "127.0.0.1"),
        ({**HERE, "forwarded": "for=10.0.0.7"}, "127.0.0.1"),
        ({**HERE, "via": "1.1 proxy"}, "127.0.0.1"),
    ],
)
def test_pages_proxies_and_other_machines_stay_outside_even_with_the_key(headers, peer):
    with pytest.raises(Refusal) as caught:
        DOOR.enter({**headers, "authorization": f"Bearer {KEY}"}, peer)
    assert caught.value.status == 403


@given(st.text(max_size=40) | st.text("localhost:127.[]@/#?", max_size=40))
def test_no_other_host_is_let_in(host):
    try:
        DOOR.enter({"host": host}, "127.0.0.1")
    except Refusal as refusal:
        assert refusal.status == 403
    else:
        assert host.lower().rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]") or host.lower() == "localhost"


def test_the_admin_key_is_made_once_and_nobody_else_may_read_it(tmp_path):
    key, is_new = admin_key(tmp_path / "served")
    path = tmp_path / "served" / ADMIN_KEY_FILE
    assert is_new and path.stat().st_mode & 0o777 == 0o600 and path.read_text() == f"{key}\n"
    assert admin_key(tmp_path / "served") == (key, False)
    assert admin_key(tmp_path / "other")[0] != key


@pytest.mark.parametrize("kind", ["readable", "empty", "link", "folder"])
def test_an_admin_key_that_is_no_secret_is_refused(tmp_path, kind):
    path = tmp_path / ADMIN_KEY_FILE
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        os.symlink("/dev/null", path)
    else:
        path.write_text("a-key-that-is-long-enough" if kind == "readable" else "")
        path.chmod(0o644 if kind == "readable" else 0o600)
    with pytest.raises(ConfigError, match="admin key") as caught:
        admin_key(tmp_path)
    assert "long-enough" not in str(caught.value)


def _write(path, **fields):
    path.write_text(yaml.safe_dump(fields))
    os.utime(path, ns=(0, _write.times))
    _write.times += 1


_write.times = 1


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(tenants, "_RELOAD_SECONDS", 0.0)


def test_keys_are_rotated_and_revoked_while_the_server_runs(tmp_path, at_once):
    path = tmp_path / "keys.yaml"
    _write(path, tenants={"acme": {"keys": ["first-key"], "handles": ["*"]}})
    door = KeyedDoor(KeyFile(path))
    first, second = {"authorization": "Bearer first-key"}, {"authorization": "Bearer second-key"}
    assert door.enter(first, None).name == "acme"
    _write(path, tenants={"acme": {"keys": ["second-key"], "handles": ["*"]}})
    assert door.enter(second, None).name == "acme"
    with pytest.raises(Refusal) as caught:
        door.enter(first, None)
    assert caught.value.status == 401


def test_a_key_file_that_breaks_leaves_the_keys_as_they_were(tmp_path, at_once):
    path = tmp_path / "keys.yaml"
    _write(path, tenants={"acme": {"keys": ["first-key"], "handles": ["*"]}})
    keys = KeyFile(path)
    path.write_text("tenants: [")
    assert keys.current().authenticate("Bearer first-key").name == "acme"
    path.unlink()
    assert keys.current().authenticate("Bearer first-key").name == "acme"


def test_a_metrics_key_reads_the_figures_and_nothing_else(tmp_path):
    path = tmp_path / "keys.yaml"
    _write(path, metrics_keys=["the-scraper"], tenants={"acme": {"keys": ["first-key"], "handles": ["*"]}})
    scraper = KeyFile(path).current().authenticate("Bearer the-scraper")
    require_metrics(scraper)
    assert not scraper.may_use("anything") and not scraper.bare_model
    for refused in (require_admin, require_client):
        with pytest.raises(Refusal) as caught:
            refused(scraper)
        assert caught.value.status == 403
    with pytest.raises(Refusal):
        require_metrics(KeyFile(path).current().authenticate("Bearer first-key"))


def test_tenants_are_apart_and_have_the_bare_model_unless_their_file_says_otherwise(tmp_path):
    path = tmp_path / "keys.yaml"
    fields = {"keys": ["first-key"], "handles": ["*"]}
    _write(path, tenants={"acme": fields})
    acme = KeyFile(path).current().authenticate("Bearer first-key")
    assert not acme.share_prompt_cache and acme.bare_model
    _write(path, tenants={"acme": {**fields, "bare_model": False, "share_prompt_cache": True}})
    acme = KeyFile(path).current().authenticate("Bearer first-key")
    assert acme.share_prompt_cache and not acme.bare_model
    _write(path, tenants={"acme": {**fields, "bare_model": "no"}})
    with pytest.raises(ConfigError, match="bare_model: got 'no', wanted true or false"):
        KeyFile(path)


def test_more_replies_than_a_tenant_may_ever_have_open_are_a_400_and_no_reason_to_try_again():
    gate, acme = Concurrency(), Tenant("acme", max_concurrent=2)
    with pytest.raises(Refusal) as caught, gate.admit(acme, 3):
        pass
    assert caught.value.status == 400 and caught.value.retry_after is None
    with gate.admit(acme, 2):
        with pytest.raises(Refusal) as caught, gate.admit(acme, 1):
            pass
        assert caught.value.status == 429 and caught.value.retry_after == 1
    assert gate.open_requests() == 0
