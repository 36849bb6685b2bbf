"""A library of LPCs: the lpc command, verification of what lies there, and composition at evaluation."""

import dataclasses
import json
from importlib.metadata import version

import pytest
import torch
from transformers.cache_utils import DynamicCache

from lpc_ray.artifacts.handles import ARTIFACTS, handle_names, read_handle, set_handle
from lpc_ray.artifacts.library import adopt, compose, load, resolve
from lpc_ray.artifacts.store import publish, record_verification, stored_manifest
from lpc_ray.cli.lpc import main
from lpc_ray.errors import ArtifactError, PrefixNotFoundError
from lpc_ray.model.identity import model_identity
from lpc_ray.prefix.attention import attach, forward_cache, prefix_arguments
from lpc_ray.storage import Store
from tests.tiny import save_tiny, tiny_identity, tiny_model

FIRST, SECOND = [5, 9, 30, 2, 77, 41, 8], [60, 61, 12, 4, 90]
IDS = torch.tensor([[5, 11, 40, 2, 96, 3]])


@pytest.fixture
def store(tmp_path):
    """Handles a and b: two first_k prefixes of the tiny model."""
    model, store = attach(tiny_model()), Store(str(tmp_path / "library"))
    for handle, ids, frozen in (("a", FIRST, 1), ("b", SECOND, 2)):
        keys, values = forward_cache(model, ids)
        provenance = {"initializer": "first_k", "induction": "raw", "traces": "0" * 32}
        manifest = publish(
            store / ARTIFACTS, keys, values, tiny_identity(model), frozen,
            provenance=provenance, costs={"training_seconds": 1.5}, k_max=4,
        )  # fmt: skip
        set_handle(store, handle, manifest.digest)
    return store


def _contents(store) -> dict[str, bytes]:
    root = store.filesystem.find(store.root)
    return {path: store.filesystem.cat_file(path) for path in root}


def _cached(parts, skip_later: int = 0) -> torch.Tensor:
    """The oracle: the parts' keys and values one after the other in transformers' cache."""
    model, plain, cache = attach(tiny_model()), tiny_model(), DynamicCache()
    for number, ids in enumerate(parts):
        keys, values = forward_cache(model, ids)
        for layer in range(3):
            kept = slice(skip_later if number else 0, None)
            cache.update(keys[layer, kept].transpose(0, 1)[None], values[layer, kept].transpose(0, 1)[None], layer)
    with torch.no_grad():
        return plain(IDS, past_key_values=cache).logits


def _logits(keys, values) -> torch.Tensor:
    positions = torch.arange(IDS.shape[1])[None] + keys.shape[1]
    with torch.no_grad():
        arguments = prefix_arguments(keys, values, torch.zeros_like(IDS))
        return attach(tiny_model())(IDS, position_ids=positions, use_cache=False, **arguments).logits


@pytest.mark.parametrize("expression", ["a", "a+b", "b+a", "a+b+a"])
def test_a_composition_is_its_parts_keys_and_values_in_order(store, tmp_path, expression):
    before = _contents(store)
    manifest, keys, values = load(store, expression)
    assert _contents(store) == before, "reading a composition writes nothing"
    parts = [{"a": FIRST, "b": SECOND}[part] for part in expression.split("+")]
    assert manifest.num_tokens == sum(map(len, parts)) and manifest.k_max == 4
    torch.testing.assert_close(_logits(keys, values), _cached(parts), atol=1e-5, rtol=0)
    assert load(store, expression, None, tmp_path / "cache")[0] == manifest


def test_later_sinks_can_be_left_out(store, tmp_path):
    digests = resolve(store, "a+b")
    manifest, keys, values = compose([load(store, digest) for digest in digests], drop_later_sinks=True)
    assert manifest.num_tokens == 10 and manifest.provenance == {"composed_of": digests, "dropped_sinks": 2}
    torch.testing.assert_close(_logits(keys, values), _cached([FIRST, SECOND], skip_later=2), atol=1e-5, rtol=0)


def test_prefixes_of_different_models_and_lengths_past_the_context_do_not_compose(store, tmp_path):
    keys = torch.zeros(3, 4, 2, 8)
    other = publish(store / ARTIFACTS, keys, keys.clone(), tiny_identity(tiny_model(), config_hash="other"), 1)
    set_handle(store, "other", other.digest)
    with pytest.raises(ArtifactError, match="config_hash is other in the artifact"):
        load(store, "a+other")
    with pytest.raises(ArtifactError, match="got 259 tokens, wanted fewer than the context of 256"):
        load(store, "+".join(["a"] * 37))
    with pytest.raises(PrefixNotFoundError, match="'c': neither"):
        load(store, "a+c")


def test_a_run_adopts_a_composition_of_a_library_whole_and_only_for_its_model(store, tmp_path):
    run, identity = Store(str(tmp_path / "run")), tiny_identity(tiny_model())
    manifest = adopt(store, "a+b", run, identity, tmp_path)
    _, keys, _ = load(run, manifest.digest, identity, tmp_path)
    assert keys.shape[1] == 12 and manifest.k_max == 4 and len(manifest.provenance["composed_of"]) == 2
    with pytest.raises(ArtifactError, match="rope"):
        adopt(store, "a", run, tiny_identity(tiny_model(), rope="other"), tmp_path)


@pytest.mark.parametrize("field", ["num_tokens", "dtype", "frozen_tokens"])
def test_a_manifest_that_contradicts_its_tensors_is_refused(store, tmp_path, field):
    [digest] = resolve(store, "a")
    manifest = dataclasses.asdict(stored_manifest(store / ARTIFACTS, digest))
    manifest[field] = {"num_tokens": 6, "dtype": "bfloat16", "frozen_tokens": 9}[field]
    store.write_json(f"{ARTIFACTS}/{digest}/lpc.json", manifest)
    with pytest.raises(ArtifactError, match="as the manifest states|wanted at most the 7 tokens"):
        load(store, "a")


# The command, on a model that lies in a folder


def _run(capsys, *arguments) -> str:
    main([str(argument) for argument in arguments])
    return capsys.readouterr().out


def _refused(capsys, *arguments) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert caught.value.code == 2 and captured.out == ""
    [line] = captured.err.splitlines()
    return line


@pytest.fixture
def model_folder(tmp_path):
    return save_tiny(tiny_model(), tmp_path / "model")


@pytest.fixture
def payload(tmp_path):
    keys, values = forward_cache(attach(tiny_model()), FIRST)
    pairs = [(key.transpose(0, 1)[None], value.transpose(0, 1)[None]) for key, value in zip(keys, values, strict=True)]
    torch.save(pairs, tmp_path / "cartridge.pt")
    return tmp_path / "cartridge.pt"


def test_import_list_inspect_verify_and_export_from_the_command_line(tmp_path, capsys, model_folder, payload):
    at = ("--store", tmp_path / "library")
    assert "got an empty or missing folder" in _refused(capsys, "list", *at)
    out = _run(capsys, "import", payload, "--format", "knlp", "--model", model_folder, "--name", "doc", *at)
    assert out.startswith("doc → ") and "7 tokens" in out
    [heading, row] = _run(capsys, "list", *at).splitlines()
    assert row.split()[0] == "doc" and row.split()[2:4] == ["skill", "7"]
    shown = _run(capsys, "inspect", "doc", *at)
    assert len(shown.splitlines()) <= 40 and all(len(line) <= 140 for line in shown.splitlines())
    for field in ("digest", "tokenizer", "rope", "imported_from", "verification       none recorded"):
        assert field in shown
    assert "whole and made for" in _run(capsys, "verify", "doc", *at)
    assert "whole and made for" in _run(capsys, "verify", row.split()[1], "--model", model_folder, *at)
    written = _run(capsys, "export", "doc", "--format", "peft", "--out", tmp_path / "out", *at).split()
    assert written == [
        str(tmp_path / "out" / name) for name in ("adapter_config.json", "adapter_model.safetensors", "lpc.json")
    ]
    _run(capsys, "import", tmp_path / "out", "--format", "peft", "--model", model_folder, "--name", "again", *at)
    library = Store(str(tmp_path / "library"))
    handles = {handle: read_handle(library, handle) for handle in handle_names(library)}
    assert handles["doc"] == handles["again"]


def test_verify_finds_a_flipped_bit_and_another_model(tmp_path, capsys, model_folder, payload):
    at = ("--store", tmp_path / "library")
    _run(capsys, "import", payload, "--format", "knlp", "--model", model_folder, "--name", "doc", *at)
    other = save_tiny(tiny_model(seed=1), tmp_path / "other")
    assert "made for another model: weights_hash" in _refused(capsys, "verify", "doc", "--model", other, *at)
    digest = read_handle(Store(str(tmp_path / "library")), "doc")
    tensors = tmp_path / "library" / ARTIFACTS / digest / "prefix.safetensors"
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)
    assert "got digest" in _refused(capsys, "verify", "doc", *at)


def test_verify_reads_the_store_and_not_the_cache(tmp_path, capsys, monkeypatch, model_folder, payload):
    monkeypatch.setenv("LPC_CACHE", str(tmp_path / "cache"))
    store = Store(f"memory://{tmp_path}/library")
    at = ("--store", store.url)
    imported = ("import", payload, "--format", "knlp", "--model", model_folder, "--name", "doc", *at)
    _run(capsys, *imported)
    tensors = f"{ARTIFACTS}/{read_handle(store, 'doc')}/prefix.safetensors"
    good = store.read_bytes(tensors)
    adopt(store, "doc", Store(str(tmp_path / "run")), model_identity(model_folder), tmp_path / "cache" / "prefixes")
    assert "whole" in _run(capsys, "verify", "doc", *at)
    store.write_bytes(tensors, good[:-1])
    assert "corrupt" in _refused(capsys, "verify", "doc", *at)
    assert "corrupt" in _refused(capsys, "export", "doc", "--format", "peft", "--out", tmp_path / "out", *at)
    _run(capsys, *imported)
    assert "whole" in _run(capsys, "verify", "doc", *at)


def test_a_composition_is_verified_and_exported_without_a_word_to_the_store(tmp_path, capsys, model_folder, payload):
    store = Store(str(tmp_path / "library"))
    at = ("--store", store.url)
    _run(capsys, "import", payload, "--format", "knlp", "--model", model_folder, "--name", "doc", *at)
    before = _contents(store)
    assert "[3, 14, 2, 8]" in _run(capsys, "verify", "doc+doc", *at)
    _run(capsys, "export", "doc+doc", "--format", "peft", "--out", tmp_path / "out", *at)
    assert _contents(store) == before


def test_align_down_drops_whole_blocks_only_and_says_so(tmp_path, capsys, model_folder, payload):
    at = ("--store", tmp_path / "library")
    arguments = ("import", payload, "--format", "knlp", "--model", model_folder, "--name", "doc", *at)
    main([str(argument) for argument in (*arguments, "--align-down", 4)])
    assert "warning: 3 trained tokens dropped" in capsys.readouterr().err
    _, keys, _ = load(Store(str(tmp_path / "library")), "doc", model_identity(model_folder), tmp_path)
    assert keys.shape[1] == 4
    assert "wanted at least one block of 8" in _refused(capsys, *arguments, "--align-down", 8)
    assert "wanted a block of 1 or more" in _refused(capsys, *arguments, "--align-down", 0)


def test_errors_are_one_line_and_leave_nothing(tmp_path, capsys, model_folder, payload):
    at = ("--store", tmp_path / "library")
    for arguments, message in (
        (("inspect", "nobody"), "'nobody': neither a handle nor a digest"),
        (
            ("import", payload, "--format", "knlp", "--model", model_folder, "--name", "0" * 32),
            "got what reads as a digest, wanted a name",
        ),
        (("verify", "a/b"), "wanted 1 to 128 letters"),
        (("export", "nobody", "--format", "peft", "--out", tmp_path / "out"), "neither a handle"),
        (
            ("import", payload, "--format", "peft", "--model", model_folder, "--name", "x"),
            "adapter_config.json: does not exist",
        ),
        (("import", payload, "--format", "knlp", "--model", tmp_path / "none", "--name", "x"), "model"),
        (("import", payload, "--format", "knlp", "--model", model_folder, "--name", "a:b"), "wanted 1 to 128 letters"),
    ):
        assert message in _refused(capsys, *arguments, *at)
    assert not (tmp_path / "library").exists() and not (tmp_path / "out").exists()


def test_a_prefix_for_a_model_it_cannot_enter_is_not_taken_in(tmp_path, capsys, payload):
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    folder = save_tiny(tiny_model(rope_parameters=rope), tmp_path / "dynamic")
    arguments = (
        "import",
        payload,
        "--format",
        "knlp",
        "--model",
        folder,
        "--name",
        "x",
        "--store",
        tmp_path / "library",
    )
    assert "model llama: dynamic RoPE" in _refused(capsys, *arguments)


def test_a_prefix_that_leaves_a_window_no_room_is_neither_taken_in_nor_verified(tmp_path, capsys, payload):
    folder = save_tiny(tiny_model("mistral", sliding_window=8), tmp_path / "mistral")
    at = ("--store", tmp_path / "library")
    _run(capsys, "import", payload, "--format", "knlp", "--model", folder, "--name", "doc", *at)
    assert "whole" in _run(capsys, "verify", "doc", *at)
    reason = "got 15 tokens of prefix (14) and prompt (1 or more), wanted at most its sliding window of 8"
    assert reason in _refused(capsys, "verify", "doc+doc", *at)


def test_import_tells_where_the_handle_pointed_and_of_a_file_for_another_model(tmp_path, capsys, model_folder, payload):
    arguments = ("--model", model_folder, "--name", "doc", "--store", tmp_path / "library")
    first = _run(capsys, "import", payload, "--format", "knlp", *arguments)
    _run(capsys, "export", "doc", "--format", "peft", "--out", tmp_path / "out", "--store", tmp_path / "library")
    config = tmp_path / "out" / "adapter_config.json"
    settings = {**json.loads(config.read_text()), "base_model_name_or_path": "other\x1b", "num_frozen_tokens": 3}
    config.write_text(json.dumps(settings))
    main([str(one) for one in ("import", tmp_path / "out", "--format", "peft", *arguments)])
    shown = capsys.readouterr()
    assert shown.out.rstrip().endswith(f"before → {first.split()[2]}") and "before" not in first
    [warning] = shown.err.splitlines()
    assert warning.startswith("warning: ") and "was made for other\\x1b, not for" in warning


def test_the_shells_ways_to_break_a_command_are_one_line(store, tmp_path, capsys):
    for url in ("", " ", "memory:", "data:,x", "zip://x.zip", "reference://x", "ftp://localhost:9/x"):
        assert "store" in _refused(capsys, "list", "--store", url)
    assert "too long" in _refused(
        capsys, "export", "a", "--format", "peft", "--out", tmp_path / ("x" * 300), "--store", store.url
    )


def test_a_handle_whose_artifact_is_gone_and_an_artifact_without_handle_are_listed(store, capsys):
    digests = {handle: read_handle(store, handle) for handle in handle_names(store)}
    (store / ARTIFACTS).remove(digests["a"])
    store.remove("handles/b.json")
    shown = _run(capsys, "list", "--store", store.url)
    assert f"prefix {digests['a']}: not in" in shown and f"-{'':<35} {digests['b'][:12]}" in shown


def test_a_malformed_manifest_is_shown_in_its_row_and_hides_no_other(store, capsys):
    digests = {handle: read_handle(store, handle) for handle in handle_names(store)}
    store.write_bytes(f"{ARTIFACTS}/{digests['a']}/lpc.json", b"{}")
    first, second = _run(capsys, "list", "--store", store.url).splitlines()[1:3]
    assert first.startswith("a ") and "lpc.json" in first and second.startswith("b ") and "llama" in second


def test_a_malformed_handle_is_shown_in_its_row_and_hides_no_other(store, capsys):
    store.write_bytes("handles/a.json", b'{"digest": 3}')
    store.write_bytes("handles/aa.json", b"[" * 100_000)
    first, second, third, _ = _run(capsys, "list", "--store", store.url).splitlines()[1:]
    assert first.split()[:2] == ["a", "-"] and "got no digest" in first and "nested too deeply" in second
    assert third.startswith("b ") and "llama" in third


@pytest.mark.parametrize(
    "change", [{"provenance": []}, {"kind": {}}, {"num_tokens": -5}, {"dtype": "nn"}, "[" * 100_000, "[]"]
)
def test_a_manifest_that_cannot_be_true_spoils_its_row_and_no_other(store, capsys, change):
    path = f"{ARTIFACTS}/{read_handle(store, 'a')}/lpc.json"
    text = change if isinstance(change, str) else json.dumps({**json.loads(store.read_bytes(path)), **change})
    store.write_bytes(path, text.encode())
    first, second = _run(capsys, "list", "--store", store.url).splitlines()[1:3]
    assert "lpc.json: not an LPC manifest" in first and second.startswith("b ") and "llama" in second
    assert "not an LPC manifest" in _refused(capsys, "inspect", "a", "--store", store.url)


def test_no_text_of_a_manifest_steers_the_terminal(store, capsys):
    path = f"{ARTIFACTS}/{read_handle(store, 'a')}/lpc.json"
    manifest = json.loads(store.read_bytes(path))
    manifest["provenance"] = {"induction": "\x1b[2J", "key\x07": "line\nbreak"}
    manifest["identity"]["model_id"] = "\x1b]0;title\x07"
    store.write_json(path, manifest)
    for command in (("list",), ("inspect", "a")):
        shown = _run(capsys, *command, "--store", store.url)
        assert "\\x1b" in shown and all(line.isprintable() for line in shown.splitlines())


def test_list_and_inspect_show_the_scores_that_the_manifest_has(store, capsys):
    digest = read_handle(store, "a")
    record_verification(store / ARTIFACTS, digest, "p", tune={"passed": 20, "total": 24})
    assert " tune 20/24 " in _run(capsys, "list", "--store", store.url).splitlines()[1]
    record_verification(store / ARTIFACTS, digest, "p", held_out={"passed": 45, "total": 66})
    first, second = _run(capsys, "list", "--store", store.url).splitlines()[1:3]
    assert " held-out 45/66 " in first and second.split()[5] == "-"
    shown = _run(capsys, "inspect", "a", "--store", store.url)
    assert (
        "  held_out         45/66\n" in shown
        and "  tune             20/24" in shown
        and "  protocol         p\n" in shown
    )
    path = f"{ARTIFACTS}/{digest}/lpc.json"
    strange = {"tune": {"passed": "\x1b[2J", "total": None}, "held_out": [3]}
    store.write_json(path, {**json.loads(store.read_bytes(path)), "verification": strange})
    assert "\\x1b[2J/None" in _run(capsys, "list", "--store", store.url)


def test_inspect_reads_what_another_process_wrote_as_plain_json(store, capsys):
    digest = read_handle(store, "a")
    manifest = json.loads(store.read_bytes(f"{ARTIFACTS}/{digest}/lpc.json"))
    manifest["verification"] = {"tune": {"passed": 17, "total": 24}}
    store.write_json(f"{ARTIFACTS}/{digest}/lpc.json", manifest)
    assert "  tune             17/24" in _run(capsys, "inspect", "a", "--store", store.url)


def test_the_version_is_that_of_the_installed_distribution(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr() == (f"lpc_ray {version('lpc-ray')}\n", "")
