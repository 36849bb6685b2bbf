"""What the serving tests share: prefixes of short texts, transformers as the oracle, and a real application."""

import socket
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DynamicCache

from lpc_ray.artifacts.store import load_prefix, publish
from lpc_ray.model.embedded import fetch_embedded_model
from lpc_ray.model.identity import model_identity
from lpc_ray.prefix.attention import attach
from lpc_ray.prefix.initializers import first_k
from lpc_ray.prefix.initializers.base import Start
from lpc_ray.serving.doors import ADMIN_KEY_FILE

NAME = "smollm2-135m-instruct"
PREFIX_TOKENS = 96
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "orange", "purple")
FACTS = {
    f"fact-{colour}": f"<|im_start|>system\nThe gate of the station is {colour}. "
    + f"The gate is {colour}, remember it. " * 20
    for colour in COLOURS
}
QUESTION = "Which colour is the gate?"


class Oracle:
    """transformers in fp32 on its own attention, given a prefix as a DynamicCache."""

    def __init__(self):
        self.folder = str(fetch_embedded_model())
        self.model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.identity = model_identity(self.folder)

    def chat_ids(self, question):
        messages = [{"role": "user", "content": question}]
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def chat(self, prefixes, question, new_tokens):
        return self.greedy(prefixes, self.chat_ids(question), new_tokens)

    @torch.no_grad()
    def greedy(self, prefixes, prompt_ids, new_tokens):
        """Text and log-probs after the prefixes (keys, values: [L, P, H, D]), each with its own phases, in order."""
        cache = DynamicCache()
        if prefixes:
            keys = torch.cat([keys for keys, _ in prefixes], dim=1)
            values = torch.cat([values for _, values in prefixes], dim=1)
            for layer in range(keys.shape[0]):
                cache.update(keys[layer].transpose(0, 1)[None], values[layer].transpose(0, 1)[None], layer)
        ids, tokens, logprobs = torch.tensor([prompt_ids]), [], []
        for _ in range(new_tokens):
            logits = self.model(ids, past_key_values=cache).logits[0, -1]
            tokens.append(int(logits.argmax()))
            logprobs.append(torch.log_softmax(logits, -1)[tokens[-1]].item())
            if tokens[-1] == 2:
                break
            ids = torch.tensor([[tokens[-1]]])
        return self.tokenizer.decode(tokens, skip_special_tokens=True), logprobs

    def load(self, store, digest):
        _, keys, values = load_prefix(store.path(digest), self.identity)
        return keys, values


def publish_texts(oracle, store, texts, num_tokens=PREFIX_TOKENS):
    """Name → digest of a first_k prefix of each text."""
    backbone = attach(AutoModelForCausalLM.from_pretrained(oracle.folder, dtype=torch.float32))
    found = {}
    for name, text in texts.items():
        ids = oracle.encode(text)
        size = num_tokens[name] if isinstance(num_tokens, dict) else num_tokens
        start = first_k.initialize(Start(backbone, ids, size))
        found[name] = publish(store, start.keys, start.values, oracle.identity, 1).digest
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def application(**settings):
    """A running server's URL and its log folder; Ray and everything below it end with the block."""
    import ray
    from ray import serve

    from lpc_ray.adapters.server.app import APP, build

    port = free_port()
    with tempfile.TemporaryDirectory(prefix="lpc", dir="/tmp") as scratch:
        ray.init(address="local", num_cpus=16, include_dashboard=False, log_to_driver=False, _temp_dir=f"{scratch}/r")
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            serve.run(build({"model": NAME, "host_tier": f"{scratch}/tier", **settings}), name=APP)
            yield f"http://127.0.0.1:{port}", Path(scratch) / "r" / "session_latest" / "logs"
        finally:
            serve.shutdown()
            ray.shutdown()


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def local_admin(store):
    """The header that manages a server without a key file, whose artifacts lie in `store`."""
    key = Path(f"{store.url}-served", ADMIN_KEY_FILE).read_text(encoding="ascii").strip()
    return {"Authorization": f"Bearer {key}"}


def replica_ids(url, admin):
    """The replicas whose figures the server's metrics hold."""
    page = httpx.get(f"{url}/metrics", headers={"Authorization": admin["Authorization"]}, timeout=60).text
    lines = [line for line in page.splitlines() if line.startswith("lpc_tier_limit_bytes{")]
    return {line.split('replica="')[1].split('"')[0] for line in lines}
