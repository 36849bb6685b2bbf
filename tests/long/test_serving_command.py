"""`python -m serve.app`, which `make serve` runs: a finished run's best prefix is served, and a signal ends it gracefully."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from lpc_ray.storage import Store
from tests.serving import NAME, Oracle, free_port, publish_texts, wait_until
from tests.shared_memory import segments_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = "<|im_start|>system\nThe gate of the station is red. " + "The gate is red, remember it. " * 20


def test_a_runs_best_prefix_is_served_and_sigterm_lets_streams_end(tmp_path):
    oracle, run = Oracle(), tmp_path / "run"
    digest = publish_texts(oracle, Store(str(run / "artifacts")), {"red": TEXT})["red"]
    arms = [{"digest": None, "score": 1.0}, {"digest": "0" * 32, "score": 0.1}, {"digest": digest, "score": 0.7}]
    (run / "report.json").write_text(json.dumps({"arms": arms}))
    wanted = oracle.chat([oracle.load(Store(str(run / "artifacts")), digest)], "Which colour is the gate?", 8)[0]
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "serve.app", "--run", str(run), "--port", str(port), "max_model_len=512"]
    with open(log, "w") as sink:
        server = subprocess.Popen(command, cwd=ROOT, stdout=sink, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: server.poll() is not None or "this machine only: no key file" in log.read_text(), 240)
        assert server.poll() is None, log.read_text()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
            body = {"model": f"{NAME}:demo", "temperature": 0, "max_tokens": 8}
            body["messages"] = [{"role": "user", "content": "Which colour is the gate?"}]
            answer = http.post("/v1/chat/completions", json=body).json()
            assert answer["choices"][0]["message"]["content"] == wanted
            with http.stream(
                "POST", "/v1/chat/completions", json={**body, "max_tokens": 200, "stream": True, "ignore_eos": True}
            ) as stream:
                lines = stream.iter_lines()
                parts, shared = [next(lines)], segments_of(server.pid)
                server.send_signal(signal.SIGTERM)
                wait_until(lambda: http.get("/health").status_code == 503, 60)
                assert http.post("/v1/chat/completions", json=body).status_code == 503
                parts += list(lines)
            assert parts[-2:] == ["data: [DONE]", ""]
        assert server.wait(timeout=120) == 0
        assert shared and not {path for path in shared if path.exists()}
    finally:
        server.kill()
