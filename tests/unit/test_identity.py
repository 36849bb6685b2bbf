"""When two models are one: the same numbers, forward pass, tokenizer and template, however their files are written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, LlamaConfig

from lpc_ray.errors import ArtifactError, ConfigError
from lpc_ray.model import weights
from lpc_ray.model.forward_fields import forward_fields, rope_of
from lpc_ray.model.identity import check_same, model_identity
from lpc_ray.model.text_fields import template_of, tokenizer_fields
from lpc_ray.model.weights import weights_hash
from tests.tiny import save_tiny, tiny_model

ROOT = Path(__file__).parents[2]
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
TEMPLATE = "{% for one in messages %}{{ one['role'] }}: {{ one['content'] }}\n{% endfor %}"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LPC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def base(tmp_path):
    folder = Path(save_tiny(tiny_model(tie_word_embeddings=True), tmp_path / "base"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def _json(file: str, **fields):
    def change(folder):
        (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **fields}))

    return change


def _tensors(change):
    def work(folder):
        save_file(change(load_file(folder / WHOLE)), folder / WHOLE, metadata={"format": "pt"})

    return work


def _shard(folder, parts: int = 2):
    tensors = load_file(folder / WHOLE)
    (folder / WHOLE).unlink()
    weight_map = {}
    for number in range(parts):
        name = f"model-{number + 1:05d}-of-{parts:05d}.safetensors"
        part = dict(sorted(tensors.items())[number::parts])
        save_file(part, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


def _pickle(folder):
    torch.save(load_file(folder / WHOLE), folder / "pytorch_model.bin")
    (folder / WHOLE).unlink()


def _snapshot(folder):
    """Blobs and links, as the hub's cache has them."""
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    for file in list(folder.iterdir()):
        file.rename(blobs / file.name)
        file.symlink_to(blobs / file.name)


def _rewrite(file: str, change):
    def work(folder):
        (folder / file).write_bytes(change((folder / file).read_bytes()))

    return work


SAME = {
    "nothing": lambda folder: None,
    "a note": _json("config.json", unsloth_fixed=True),
    "an object as a note": _json("config.json", **{"transformers.js_config": {"dtype": "q4"}}),
    "a null that no class knows": _json("config.json", some_new_default=None),
    "another end of turn": _json("config.json", eos_token_id=[2, 3]),
    "another version, dtype and name": _json("config.json", transformers_version="9", dtype="bfloat16", _name_or_path="x"),
    "training's dropout": _json("config.json", attention_dropout=0.1),
    "a default written out": _json("config.json", attention_bias=False, mlp_bias=False, rms_norm_eps=1e-6),
    "a longer context": _json("config.json", max_position_embeddings=512),
    "RoPE in the older spelling": _json("config.json", rope_parameters=None, rope_theta=10000, rope_scaling=None),
    "shards": _shard,
    "five shards": lambda folder: _shard(folder, 5),
    "other metadata": _tensors(lambda tensors: tensors),
    "a copy of the weights beside them": lambda folder: shutil.copy(folder / WHOLE, folder / "adapter.safetensors"),
    "other files beside": lambda folder: save_file({"lora": torch.ones(2)}, folder / "adapter.safetensors"),
    "the tied head stored": _tensors(lambda ts: {**ts, "lm_head.weight": ts["model.embed_tokens.weight"].clone()}),
    "what RoPE computes stored": _tensors(lambda ts: {**ts, "model.rotary_emb.inv_freq": torch.ones(4)}),
    "PyTorch's own file": _pickle,
    "a snapshot of links": _snapshot,
    "tokenizer.json reformatted": _rewrite("tokenizer.json", lambda text: json.dumps(json.loads(text)).encode()),
    "tokenizer.json with truncation": _json(
        "tokenizer.json",
        truncation={"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0},
    ),
    "a tokenizer's length": _json("tokenizer_config.json", model_max_length=7, clean_up_tokenization_spaces=True),
    "CRLF in the template": _rewrite("chat_template.jinja", lambda text: text.replace(b"\n", b"\r\n")),
    "a line end after the template": _rewrite("chat_template.jinja", lambda text: text + b"\n"),
    "generation settings": lambda folder: (folder / "generation_config.json").write_text('{"temperature": 0.1}'),
}  # fmt: skip
OTHER = {
    "one number": ("weights_hash", _tensors(lambda ts: {**ts, "model.norm.weight": ts["model.norm.weight"] + 1e-3})),
    "two tensors exchanged": ("weights_hash", _tensors(lambda ts: {
        **ts,
        "model.layers.0.mlp.up_proj.weight": ts["model.layers.0.mlp.gate_proj.weight"],
        "model.layers.0.mlp.gate_proj.weight": ts["model.layers.0.mlp.up_proj.weight"],
    })),
    "a head of its own": ("weights_hash", _tensors(lambda ts: {**ts, "lm_head.weight": torch.zeros(97, 32)})),
    "rounded": ("weights_hash", _tensors(lambda ts: {name: one.bfloat16() for name, one in ts.items()})),
    "an epsilon": ("config_hash", _json("config.json", rms_norm_eps=1e-5)),
    "no number at all": ("config_hash", _json("config.json", rms_norm_eps=float("nan"))),
    "an activation": ("config_hash", _json("config.json", hidden_act="gelu")),
    "quantised on loading": ("config_hash", _json("config.json", quantization_config={"quant_method": "fp8"})),
    "RoPE's base": ("rope", _json("config.json", rope_parameters={"rope_theta": 5000.0, "rope_type": "default"})),
    "RoPE's stretch": ("rope", _json("config.json", rope_parameters={
        "rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0,
    })),
    "a template": ("chat_template_hash", _rewrite("chat_template.jinja", lambda text: text + b"!")),
    "two line ends after the template": ("chat_template_hash", _rewrite("chat_template.jinja", lambda text: text + b"\n\n")),
    "a word": ("tokenizer_hash", _rewrite("tokenizer.json", lambda text: text.replace(b'"t5"', b'"u5"'))),
}  # fmt: skip


@pytest.mark.parametrize("change", SAME)
def test_what_changes_no_token_keeps_a_model_the_same(base, tmp_path, change):
    other = Path(shutil.copytree(base, tmp_path / "other"))
    SAME[change](other)
    check_same(model_identity(str(base)), model_identity(str(other)), "here")


@pytest.mark.parametrize("change", OTHER)
def test_what_may_change_a_token_makes_another_model_and_is_named(base, tmp_path, change):
    field, work = OTHER[change]
    other = Path(shutil.copytree(base, tmp_path / "other"))
    work(other)
    with pytest.raises(ArtifactError, match=f"^here: made for another model: {field} is "):
        check_same(model_identity(str(base)), model_identity(str(other)), "here")


def test_bfloat16_numbers_kept_as_float32_are_the_same_and_a_rounded_model_is_not(tmp_path):
    tensors = {"a": torch.randn(7, 5).bfloat16(), "b": torch.zeros(3, dtype=torch.bfloat16)}
    found = []
    for name, kept in (("half", tensors), ("whole", {name: one.float() for name, one in tensors.items()})):
        (tmp_path / name).mkdir()
        save_file(kept, tmp_path / name / WHOLE)
        found.append(weights_hash(str(tmp_path / name), None, None))
    assert found[0] == found[1]


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "olmo2"])
def test_a_field_that_a_later_transformers_adds_with_its_default_orphans_no_prefix(model_type):
    config = tiny_model(model_type).config
    later = type("Later", (type(config),), {"__annotations__": {"new_switch": bool}, "new_switch": False})
    fields = {name: value for name, value in config.to_dict().items() if name != "model_type"}
    assert forward_fields(later(**fields)) == forward_fields(config)
    assert forward_fields(later(**{**fields, "new_switch": True})) != forward_fields(config)


def test_a_list_that_follows_from_other_fields_may_be_left_out():
    given = {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    written = AutoConfig.for_model("qwen2", **given)
    assert written.layer_types == ["full_attention"] * 3
    stated = AutoConfig.for_model("qwen2", **given, layer_types=["full_attention"] * 3)
    slides = AutoConfig.for_model("qwen2", **given, layer_types=["full_attention"] * 2 + ["sliding_attention"])
    assert forward_fields(written) == forward_fields(stated) != forward_fields(slides)


def test_a_null_that_switches_off_a_default_is_not_a_field_left_out():
    default, off = AutoConfig.for_model("mistral"), AutoConfig.for_model("mistral", sliding_window=None)
    assert default.sliding_window == 4096 and forward_fields(default) != forward_fields(off)


def test_a_stretched_rope_reads_its_original_context_from_the_model_where_it_states_none():
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
    short, long = (LlamaConfig(rope_parameters=dict(yarn), max_position_embeddings=size) for size in (256, 512))
    stated = LlamaConfig(rope_parameters={**yarn, "original_max_position_embeddings": 256}, max_position_embeddings=256)
    assert rope_of(short) == rope_of(stated) != rope_of(long)


def test_switches_and_spellings_of_a_later_tokenizers_library_change_nothing():
    older = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}, "normalizer": None}
    newer = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]], "ignore_merges": False}}
    other = {"model": {"type": "BPE", "vocab": {"a": 1}, "merges": ["a b"]}}
    first, second, third = (tokenizer_fields(json.dumps(one)) for one in (older, newer, other))
    assert first == second != third


def test_of_several_templates_the_one_that_renders_conversations_counts():
    assert template_of({"default": "a\r\n", "tool_use": "b"}) == "a" == template_of("a")
    assert template_of(None) == template_of({"tool_use": "b"}) == ""


def _snapshot_on_the_hub(base: Path, home: Path) -> str:
    root = home / "hub" / "models--someone--tiny"
    shutil.copytree(base, root / "snapshots" / ("a" * 40))
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("a" * 40)
    return "someone/tiny"


def test_a_model_by_its_hub_id_is_the_one_in_a_folder(base, tmp_path):
    _shard(base)
    code = (
        "import sys; from lpc_ray.model.identity import model_identity; print(model_identity(sys.argv[1]).compared())"
    )
    name = _snapshot_on_the_hub(base, tmp_path / "home")
    env = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    found = subprocess.run([sys.executable, "-c", code, name], env=env, capture_output=True, text=True)
    assert found.stdout.strip() == str(model_identity(str(base)).compared()), found.stderr


def test_a_file_is_hashed_once_and_again_when_it_has_changed(base, cache, monkeypatch):
    read = []
    real = weights.hashed
    monkeypatch.setattr(weights, "hashed", lambda *given: (read.append(1), real(*given))[1])
    first = weights_hash(str(base), None, None)
    assert len(read) == len(load_file(base / WHOLE))
    assert weights_hash(str(base), None, None) == first and len(read) == len(load_file(base / WHOLE))
    file, before = base / WHOLE, (base / WHOLE).stat()
    with open(file, "r+b") as sink:
        sink.seek(-1, os.SEEK_END)
        sink.write(b"\x01")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights_hash(str(base), None, None) != first
    for entry in (cache / "weights").iterdir():
        entry.write_text('{"a": 1}')
    assert weights_hash(str(base), None, None) != first


def _refused(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        weights_hash(str(folder), None, None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_damaged_or_contradicting_weights_are_one_line(base, tmp_path):
    def broken(name, work):
        other = Path(shutil.copytree(base, tmp_path / name))
        work(other)
        return _refused(other)

    def one_shard_gone(folder):
        _shard(folder)
        (folder / "model-00002-of-00002.safetensors").unlink()

    def stale(folder):
        _tensors(lambda ts: {**ts, "model.norm.weight": torch.zeros(32)})(folder)
        (folder / WHOLE).rename(folder / "old.safetensors")
        shutil.copy(base / WHOLE, folder / WHOLE)

    def both(folder):
        _shard(folder)
        shutil.copy(base / WHOLE, folder / WHOLE)

    assert "model-00002-of-00002.safetensors is missing" in broken("gone", one_shard_gone)
    assert "two different tensors model.norm.weight" in broken("stale", stale)
    assert "and an index of other files" in broken("both", both)
    assert "cut short" in broken("short", _rewrite(WHOLE, lambda data: data[:-9]))
    assert "got no safetensors file" in broken("text", _rewrite(WHOLE, lambda data: b"version https://git-lfs"))
    assert "got no safetensors file" in broken("empty", _rewrite(WHOLE, lambda data: b""))

    def header(**entry):
        text = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}).encode()
        return _rewrite(WHOLE, lambda _: len(text).to_bytes(8, "little") + text + bytes(8))

    def pipe(folder):
        (folder / WHOLE).unlink()
        os.mkfifo(folder / WHOLE)

    for number, entry in enumerate(({"data_offsets": ["0", "8"]}, {"shape": [float("nan")]}, {"dtype": 3})):
        assert "got no safetensors file" in broken(f"header{number}", header(**entry))
    assert "got a folder, pipe or device" in broken("pipe", pipe)
    outside = json.dumps({"weight_map": {"a": "../base/model.safetensors"}}).encode()
    assert "wanted names of files beside it" in broken("outside", lambda f: (f / INDEX).write_bytes(outside))
    assert "no index of weight files" in broken("list", lambda folder: (folder / INDEX).write_text("[]"))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("odd", ["nan", "inf", "-inf"])
def test_a_weight_that_is_no_number_is_named_with_its_file(base, tmp_path, kind, odd):
    norm = torch.ones(32, dtype=kind)
    norm[7] = float(odd)
    words = "tensor model.norm.weight: got NaN or infinity as number 7, wanted weights that are all finite"
    folder = Path(shutil.copytree(base, tmp_path / "odd"))
    _tensors(lambda ts: {**ts, "model.norm.weight": norm})(folder)
    for _ in range(2):  # a second time, when others are known from the cache
        assert _refused(folder) == f"{folder / WHOLE}: {words}"
    torch.save(load_file(folder / WHOLE), folder / "pytorch_model.bin")
    (folder / WHOLE).unlink()
    assert _refused(folder) == f"{folder / 'pytorch_model.bin'}: {words}"


def test_code_in_a_pickled_model_does_not_run(base, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"a": Evil()}, base / "pytorch_model.bin")
    (base / WHOLE).unlink()
    assert "wanted safetensors" in _refused(base) and not (tmp_path / "ran").exists()
