"""The example, on the real model with few optimizer steps, and the package's own names."""

import subprocess
import sys
from pathlib import Path

import torch

from examples.one_prefix import main


def test_the_example_ends_with_an_answer_from_the_document(tmp_path, capsys):
    torch.set_num_threads(2)
    options = ["--steps", "2", "--question", "What is the name of the island?", "--out", str(tmp_path / "run")]
    assert "Fennoy" in main(options)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "document  handbook.md: 804 tokens"
    [digest] = [folder.name for folder in Path(tmp_path / "run" / "artifacts").iterdir()]
    assert any(line.startswith(f"artifact  {digest}") for line in lines)


def test_the_package_exports_its_names_without_loading_torch():
    code = (
        "import sys, lpc_ray\n"
        "assert 'torch' not in sys.modules\n"
        "from lpc_ray import Prefix, attach, load, publish\n"
        "assert 'torch' in sys.modules and not {'ray', 'vllm', 'deepspeed'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
