"""A plug-in's file is its name: found without an import, and refused in one line where it is broken."""

import sys

import pytest

from lpc_ray.config.plugins import load_plugin, plugin_names
from lpc_ray.errors import ConfigError

WHOLE = "import math\n\n\ndef loss(x):\n    return x\n\n\nneeds_teacher = False\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder of plug-ins that define `loss`; returns a function that adds a file to it."""
    folder = tmp_path / "kinds"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda name, data: (folder / f"{name}.py").write_bytes(data if isinstance(data, bytes) else data.encode())
    for module in [name for name in sys.modules if name == "kinds" or name.startswith("kinds.")]:
        del sys.modules[module]


def _refused(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_plugin("kinds", "loss", name, "recipe.sweep.0.objective.0", "needs_teacher")
    return str(caught.value)


def test_a_file_that_defines_the_name_is_a_plug_in_and_no_other(package):
    package("whole", WHOLE)
    package("shared", "def other():\n    pass\n")
    package("indented", "class A:\n    def loss(self):\n        pass\n")
    package("_own", WHOLE)
    package("мой-k", WHOLE)
    package("Upper", WHOLE)
    assert plugin_names("kinds", "loss") == ["whole"]
    assert load_plugin("kinds", "loss", "whole", "here", "needs_teacher").loss(3) == 3


def test_an_unknown_name_gets_the_nearest_one(package):
    package("whole", WHOLE)
    message = _refused("whol")
    assert message.startswith("recipe.sweep.0.objective.0: got 'whol', wanted one of whole") and "'whole'?" in message


@pytest.mark.parametrize(
    "text, reason",
    [
        ("def loss(x): ...\n\0", "no Python: source code string cannot contain null bytes"),
        ("def loss(:\n", "no Python: invalid syntax (broken.py, line 1)"),
        ("import no_such_module\ndef loss(x): ...\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def loss(x): ...\n1 / 0\n", "ZeroDivisionError: division by zero"),
        (b"def loss(x): return '\xff'\n", "no Python: (unicode error)"),
        ("def loss(x): ...\n", "whose module defines no needs_teacher"),
    ],
)
def test_a_broken_file_is_refused_in_one_line_when_it_is_named_and_harms_no_other(package, text, reason):
    package("whole", WHOLE)
    package("broken", text)
    message = _refused("broken")
    assert message.startswith("recipe.sweep.0.objective.0: got 'broken', whose module ") and reason in message
    assert load_plugin("kinds", "loss", "whole", "here", "needs_teacher").needs_teacher is False
