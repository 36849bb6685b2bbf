"""Model names, keys and settings."""

import hashlib
import json
import string
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lpc_ray.adapters.server.app import build, demo_prefix
from lpc_ray.errors import ConfigError
from lpc_ray.serving.handles import ModelName, check_handle, parse_model
from lpc_ray.serving.refusal import Refusal
from lpc_ray.serving.settings import server_settings
from lpc_ray.serving.tenants import Concurrency, Keys, Tenant, require_admin

BASE = "org/model-1"
ALNUM = string.ascii_letters + string.digits
HANDLES = st.builds(str.__add__, st.sampled_from(ALNUM), st.text(f"{ALNUM}_-.", max_size=20)).filter(
    lambda h: ".." not in h
)


@given(st.lists(HANDLES, max_size=8))
def test_a_model_name_parses_back_into_its_parts(handles):
    name = ModelName(BASE, tuple(handles))
    assert parse_model(str(name), BASE) == name


@given(st.text(max_size=60))
def test_whatever_is_accepted_as_a_handle_is_one_safe_path_component(text):
    try:
        handle = check_handle(text)
    except Refusal as refusal:
        assert refusal.status == 400
    else:
        assert handle == text and not set(handle) & set("/:+\\\0 \n") and handle[0] not in ".-"


@pytest.mark.parametrize(
    ("name", "status"),
    [
        (f"{BASE}:../../etc/passwd", 400),
        (f"{BASE}:a/b", 400),
        (f"{BASE}:", 400),
        (f"{BASE}:a+", 400),
        (f"{BASE}:a:b", 400),
        (f"{BASE}:" + "+".join("abcdefghi"), 400),
        ("other", 404),
        ("other:a", 404),
        (None, 400),
        (7, 400),
        ("", 400),
    ],
)
def test_other_names_are_refused(name, status):
    with pytest.raises(Refusal) as caught:
        parse_model(name, BASE)
    assert caught.value.status == status
    assert set(caught.value.body["error"]) == {"message", "type", "param", "code"}


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys.yaml"
    hashed = "sha256:" + hashlib.sha256(b"second-key").hexdigest()
    fields = {
        "admin_keys": ["the-admin-key"],
        "tenants": {
            "acme": {"keys": ["first-key", hashed], "handles": ["acme-*", "shared"], "max_concurrent": 2},
            "zeta": {"keys": ["zeta-key"], "handles": ["zeta-*"], "share_prompt_cache": True},
        },
    }
    path.write_text(yaml.safe_dump(fields))
    return path


def test_keys_lead_to_tenants_and_tenants_to_handles(key_file):
    keys = Keys(key_file)
    acme = keys.authenticate("Bearer first-key")
    assert acme == keys.authenticate("bearer second-key") and acme.name == "acme" and not acme.share_prompt_cache
    assert acme.may_use("acme-1") and acme.may_use("shared") and not acme.may_use("zeta-1")
    assert keys.authenticate("Bearer zeta-key").share_prompt_cache
    require_admin(keys.authenticate("Bearer the-admin-key"))
    with pytest.raises(Refusal) as caught:
        require_admin(acme)
    assert caught.value.status == 403


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong-key", "Basic first-key", "first-key", "Bearer \udcff"]
)
def test_other_keys_are_a_401_that_repeats_no_key(key_file, header):
    with pytest.raises(Refusal) as caught:
        Keys(key_file).authenticate(header)
    assert caught.value.status == 401 and "WWW-Authenticate" in caught.value.headers
    assert "key" not in (header or "") or "wrong-key" not in str(caught.value)


def test_no_key_is_kept_in_memory_or_shown(key_file):
    keys = Keys(key_file)
    assert "first-key" not in repr(vars(keys))


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {"tenant": {}},
        {"tenants": {"a": {"keys": ["short"], "handles": []}}},
        {"tenants": {"a": {"keys": ["long-enough"], "handles": "*"}}},
        {"tenants": {"a": {"keys": ["long-enough"], "handles": [], "max_concurrent": 0}}},
        {"tenants": {"a": {"keys": ["long-enough"], "handles": [], "colour": 1}}},
        {"tenants": {"a": {"keys": ["sha256:zz"], "handles": []}}},
        {"tenants": {"a": {"keys": ["long-enough", "long-enough"], "handles": []}}},
        {"tenants": ["long-enough"]},
        {"tenants": "long-enough"},
        {"tenants": {"a": ["long-enough"]}},
        {"tenants": {"a": "long-enough"}},
        {"tenants": {"a": {"keys": ["long-enough-é"], "handles": []}}},
        {"tenants": {"a": {"keys": [" long-enough "], "handles": []}}},
        {"tenants": {"admin": {"keys": ["long-enough"], "handles": []}}},
        {"admin_keys": []},
    ],
)
def test_a_malformed_key_file_is_refused_without_showing_keys(tmp_path, fields):
    path = tmp_path / "keys.yaml"
    path.write_text(yaml.safe_dump(fields))
    with pytest.raises(ConfigError) as caught:
        Keys(path)
    assert "long-enough" not in str(caught.value)


def test_a_tenant_that_stands_twice_in_a_key_file_is_refused(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(
        "tenants:\n  a: {keys: [long-enough-1], handles: []}\n  a: {keys: [long-enough-2], handles: ['*']}\n"
    )
    with pytest.raises(ConfigError, match="key file .*: cannot be read: ConstructorError$"):
        Keys(path)


def test_a_tenant_has_no_more_open_requests_than_it_may():
    gate, tenant, other = Concurrency(), Tenant("a", max_concurrent=2), Tenant("b", max_concurrent=1)
    with gate.admit(tenant), gate.admit(tenant), gate.admit(other):
        with pytest.raises(Refusal) as caught, gate.admit(tenant):
            pass
        assert caught.value.status == 429 and int(caught.value.headers["Retry-After"]) >= 1
        assert gate.open_requests() == 3
    with gate.admit(tenant):
        assert gate.open_requests() == 1
        with (
            pytest.raises(Refusal, match="has 1 requests open and asked for 2 more, wanted at most 2"),
            gate.admit(tenant, 2),
        ):
            pass


def test_settings_name_the_wrong_field_and_the_nearest_right_one():
    with pytest.raises(ConfigError, match="unknown key max_modle_len .did you mean 'max_model_len'"):
        server_settings({"max_modle_len": 5})
    with pytest.raises(ConfigError, match="host_tier_bytes"):
        server_settings({"host_tier_bytes": 0})
    with pytest.raises(ConfigError, match="':'"):
        server_settings({"name": "a:b"})
    settings = server_settings({"model": "/models/some-model", "artifacts": "runs/x"})
    assert settings.served_name == "some-model" and settings.artifacts.startswith("/")
    assert settings.registry_url == f"{settings.artifacts}-served"
    assert server_settings({"artifacts": "s3://bucket/x"}).artifacts == "s3://bucket/x"


def test_the_shipped_config_is_valid():
    config = yaml.safe_load((Path(__file__).resolve().parents[2] / "serve" / "config.yaml").read_text())
    [application] = config["applications"]
    assert application["import_path"] == "serve.app:build" and config["http_options"]["host"] == "127.0.0.1"
    assert server_settings(application["args"]).keys is None


def test_rays_direct_streaming_mode_which_bypasses_every_check_is_refused(monkeypatch):
    monkeypatch.setenv("RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING", "1")
    with pytest.raises(ConfigError, match="DIRECT_STREAMING"):
        build({})


def test_the_demo_prefix_is_the_best_scored_arm_of_a_run(tmp_path):
    with pytest.raises(ConfigError, match="make demo"):
        demo_prefix(tmp_path)
    arms = [{"digest": "a", "score": 0.5}, {"digest": "b", "score": 0.7}, {"digest": "c", "score": None}]
    (tmp_path / "report.json").write_text(json.dumps({"arms": [*arms, {"digest": None, "score": 1.0}]}))
    assert demo_prefix(tmp_path) == "b"
