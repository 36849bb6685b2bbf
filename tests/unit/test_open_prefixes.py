"""Artifacts stay open while a request may need them again, and no longer."""

import os
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from lpc_ray.adapters.vllm.open_prefixes import OpenPrefixes
from lpc_ray.artifacts.store import TENSOR_FILE


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("tier")
    for number in range(3):
        (root / str(number)).mkdir()
        save_file({"keys": torch.full((1, 2), float(number))}, root / str(number) / TENSOR_FILE)
    return [str(root / str(number)) for number in range(3)]


def _mapped():
    with open(f"/proc/{os.getpid()}/maps") as maps:
        return {line.split(maxsplit=5)[5].strip().removesuffix(" (deleted)") for line in maps if TENSOR_FILE in line}


def test_a_held_file_is_there_after_its_folder_has_gone(folders, tmp_path):
    shutil.copytree(folders[2], tmp_path / "gone")
    prefixes, folder = OpenPrefixes(), str(tmp_path / "gone")
    prefixes.hold("one", [folder])
    prefixes.hold("two", [folder])
    shutil.rmtree(folder)
    prefixes.hold("two", [folder])  # preempted, and scheduled again
    prefixes.release(["one"])
    assert prefixes.tensors(folder).get_tensor("keys").tolist() == [[2.0, 2.0]]
    prefixes.release(["two", "never held anything"])
    with pytest.raises(FileNotFoundError):
        prefixes.hold("three", [folder])
    prefixes.release(["three"])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.lists(st.integers(0, 2), max_size=3)), max_size=12))
def test_exactly_what_requests_hold_is_open(folders, steps):
    prefixes, held = OpenPrefixes(), {}
    for is_held, request, numbers in steps:
        if is_held:
            prefixes.hold(request, [folders[number] for number in numbers])
            held.setdefault(request, set()).update(folders[number] for number in numbers)
        else:
            prefixes.release([request])
            held.pop(request, None)
        wanted = {folder for own in held.values() for folder in own}
        assert {path.rpartition("/")[0] for path in _mapped()} & set(folders) <= wanted
        for folder in folders:
            if folder in wanted:
                assert prefixes.tensors(folder).get_tensor("keys")[0, 0] == folders.index(folder)
            else:
                with pytest.raises(KeyError):
                    prefixes.tensors(folder)
