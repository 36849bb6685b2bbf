"""The README's two commands exist, and CI calls the one that tests."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_readmes_commands_are_targets_and_ci_calls_make_test():
    shown = re.findall(r"^    make (\S+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert shown[:2] == ["demo", "test"] and set(shown) <= set(targets)
    ci = ROOT / ".ci" / "run"
    assert "make test" in ci.read_text(encoding="utf-8").splitlines()[-1] and os.access(ci, os.X_OK)
