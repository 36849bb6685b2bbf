"""The page at `/` in a real Chromium, driven over its DevTools protocol; needs `chromium` (or $CHROMIUM) on this machine."""

import itertools
import json
import os
import shutil
import subprocess

import httpx
import pytest
from websockets.sync.client import connect

from lpc_ray.storage import Store
from tests.serving import FACTS, NAME, QUESTION, Oracle, application, local_admin, publish_texts, wait_until

NEW_TOKENS = 128


class Page:
    """One tab. `run` evaluates JavaScript in it and returns the value."""

    def __init__(self, socket):
        self._socket, self._numbers, self.problems = socket, itertools.count(1), []
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def _call(self, method, **parameters):
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("method") == "Runtime.exceptionThrown":
                self.problems.append(message["params"]["exceptionDetails"])
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def open(self, url):
        self._call("Page.navigate", url=url)
        wait_until(lambda: self.run("document.readyState") == "complete")

    def run(self, expression):
        result = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    profile = tmp_path_factory.mktemp("chromium")
    binary = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    assert binary, "no Chromium found: set CHROMIUM"
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
    ]
    process = subprocess.Popen([binary, *flags, "about:blank"], stderr=subprocess.DEVNULL)
    try:
        wait_until((profile / "DevToolsActivePort").exists)
        port = (profile / "DevToolsActivePort").read_text().splitlines()[0]
        tabs = httpx.get(f"http://127.0.0.1:{port}/json/list").json()
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        with connect(address, max_size=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def oracle():
    return Oracle()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(str(tmp_path_factory.mktemp("page") / "artifacts"))


@pytest.fixture(scope="module")
def digests(oracle, store):
    return publish_texts(oracle, store, {name: FACTS[name] for name in ("fact-red", "fact-blue")})


@pytest.fixture(scope="module")
def url(store, digests):
    with application(artifacts=store.url, prefixes=digests, max_model_len=512) as (url, _):
        yield url


def test_the_page_lists_prefixes_and_answers_beside_the_bare_model(page, url, oracle, store, digests):
    page.open(url)
    wait_until(lambda: page.run("document.querySelectorAll('#prefixes tr').length") == 2)
    rows = page.run("[...document.querySelectorAll('#prefixes tr')].map(row => [...row.cells].map(c => c.textContent))")
    assert [row[:4] for row in rows] == [[name, "cartridge", "96", "–"] for name in sorted(digests)]
    assert [row[7] for row in rows] == [digests[name][:12] for name in sorted(digests)]
    key = local_admin(store)["Authorization"].removeprefix("Bearer ")
    page.run(f"document.getElementById('key').value = '{key}'")
    page.run("list()")
    wait_until(lambda: page.run("document.querySelector('#prefixes tr').cells[3].textContent") == "host")
    page.run(f"document.getElementById('handle').value = '{NAME}:fact-blue'")
    page.run(f"document.getElementById('message').value = {json.dumps(QUESTION)}")
    page.run("document.getElementById('ask').click()")
    wait_until(lambda: page.run("!document.getElementById('ask').disabled"), 120)
    ids = oracle.chat_ids(QUESTION)
    with_prefix, _ = oracle.greedy([oracle.load(store, digests["fact-blue"])], ids, NEW_TOKENS)
    bare, _ = oracle.greedy([], ids, NEW_TOKENS)
    assert page.run("document.getElementById('with').textContent") == with_prefix
    assert page.run("document.getElementById('bare').textContent") == bare
    assert f"{len(ids)} prompt + 96 prefix" in page.run("document.getElementById('with-usage').textContent")
    assert page.run("document.getElementById('error').textContent") == "" and page.problems == []


def test_without_a_key_file_only_this_machine_is_served(url):
    assert httpx.get(f"{url}/v1/models").status_code == 200
    for elsewhere in ("8.8.8.8", "garbage"):
        refused = httpx.get(f"{url}/v1/models", headers={"X-Forwarded-For": elsewhere})
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "local_only"
    with pytest.raises(httpx.ConnectError):
        httpx.get(url.replace("127.0.0.1", _other_address()) + "/v1/models")


def test_a_page_of_another_host_gets_nothing_and_a_program_manages_by_the_admin_key_only(url, store, digests):
    admin = local_admin(store)
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Via": "1.1 x"}):
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 403
        assert httpx.delete(f"{url}/v1/prefixes/fact-red", headers={**admin, **headers}).status_code == 403
    put = {"json": {"digest": digests["fact-red"]}, "timeout": 60}
    for headers in ({}, {"Authorization": "Bearer any-other-key"}):
        assert httpx.get(f"{url}/metrics", headers=headers).status_code == 403
        assert httpx.put(f"{url}/v1/prefixes/mine", headers=headers, **put).status_code == 403
    assert httpx.put(f"{url}/v1/prefixes/mine", headers=admin, **put).status_code == 200
    assert httpx.delete(f"{url}/v1/prefixes/mine", headers=admin).status_code == 200


def _other_address():
    """This machine's own address, as others would reach it."""
    return subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()[0]
