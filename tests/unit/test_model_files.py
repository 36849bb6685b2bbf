"""A model's files come from outside: no code in them runs, and what cannot be read is one line."""

import ast
import io
import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from lpc_ray.errors import ConfigError
from lpc_ray.model.files import read_tokenizer, text_config
from lpc_ray.model.identity import model_identity
from tests.tiny import save_tiny, tiny_model

ROOT = Path(__file__).parents[2]
CODE = """
from pathlib import Path
from transformers import PretrainedConfig, PreTrainedTokenizerFast
Path({marker!r}).touch()
class Own(PretrainedConfig):
    model_type = "own"
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def folder(tmp_path):
    return Path(save_tiny(tiny_model(), tmp_path / "model"))


def _change(file: Path, **fields) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.fixture
def hostile(folder, tmp_path, monkeypatch):
    """A model with code of its own, and a user who says yes to everything."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    (folder / "own.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    return folder


def _refused(read, folder) -> str:
    with pytest.raises(ConfigError) as caught:
        read(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("read", [text_config, model_identity])
def test_code_of_a_models_config_does_not_run(hostile, tmp_path, capsys, read):
    _change(hostile / "config.json", model_type="own", auto_map={"AutoConfig": "own.Own"})
    assert "code of its own (auto_map)" in _refused(read, hostile)
    assert not (tmp_path / "ran").exists() and "[y/N]" not in capsys.readouterr().out


@pytest.mark.parametrize("read", [read_tokenizer, model_identity])
def test_code_of_a_models_tokenizer_does_not_run(hostile, tmp_path, capsys, read):
    own = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}}
    _change(hostile / "tokenizer_config.json", **own)
    assert "code of its own (auto_map)" in _refused(read, hostile)
    assert not (tmp_path / "ran").exists() and "[y/N]" not in capsys.readouterr().out


def test_whatever_loads_a_model_config_or_tokenizer_says_that_no_code_of_its_is_trusted():
    loads = {}
    for file in [*ROOT.glob("lpc_ray/**/*.py"), *ROOT.glob("serve/*.py"), *ROOT.glob("jobs/*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called.startswith("Auto") or called in ("from_pretrained", "AsyncEngineArgs"):
                loads[f"{file.relative_to(ROOT)}:{node.lineno}"] = ast.unparse(node)
    loads = {place: call for place, call in loads.items() if "AsyncEngineArgs(**arguments)" not in call}
    files = {place.partition(":")[0] for place in loads}
    assert files == {f"lpc_ray/{name}.py" for name in ("adapters/ray/training", "model/embedded", "model/files")}
    assert [place for place, call in loads.items() if "trust_remote_code=False" not in call] == []


@pytest.mark.parametrize("text", ["{}", "[]", "", "[" * 100_000, '{"version": 1, "model": {"type": "BPE"}}'])
def test_a_broken_tokenizer_is_one_line(folder, text):
    (folder / "tokenizer.json").write_text(text)
    assert _refused(model_identity, folder).startswith(f"model {str(folder)!r}: ")


@pytest.mark.parametrize(
    "text", ["{}", "[]", "", "[" * 100_000, '{"model_type": "llama", "hidden_size": "x"}', '{"model_type": 3}']
)
def test_a_broken_config_is_one_line(folder, text):
    (folder / "config.json").write_text(text)
    assert _refused(model_identity, folder).startswith(f"model {str(folder)!r}: ")


def test_a_model_without_what_an_identity_needs_is_refused_by_name(folder):
    AutoConfig.for_model("t5").save_pretrained(folder)
    assert "t5" in _refused(model_identity, folder) and "max_position_embeddings" in _refused(model_identity, folder)
