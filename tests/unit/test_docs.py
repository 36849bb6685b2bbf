"""What the documentation names exists: links, paths, rooms, configs and fields."""

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from lpc_ray.config.job import JobConfig
from lpc_ray.serving.settings import ServerSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:lpc_ray|jobs|serve|cluster|examples|data|tests|docs)/[\w./-]*)`")
_CONFIG = re.compile(r"jobs/configs/[\w.]+\.yaml")


def _prose(page: Path) -> str:
    """A page without its fenced and indented code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", _prose(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


def _fields(kind: type[BaseModel]) -> set[str]:
    """The fields of a model and of all models in it."""
    found = set(kind.model_fields)
    pending = [field.annotation for field in kind.model_fields.values()]
    while pending:
        annotation = pending.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found |= _fields(annotation)
        else:
            pending += get_args(annotation)
    return found


def _named(page: Path) -> set[str]:
    """The parts of all dotted names in backticks."""
    return {part for name in re.findall(r"`([\w.]+)`", page.read_text(encoding="utf-8")) for part in name.split(".")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_its_heading(page):
    for target in _LINK.findall(_prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in _anchors(file), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page):
    named = {path for path in _PATH.findall(_prose(page)) if "NAME" not in path}
    named |= set(_CONFIG.findall(page.read_text(encoding="utf-8")))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "structure.md"], ids=lambda page: page.name)
def test_every_room_of_the_package_is_in_the_tree(page):
    rooms = {path.name if path.is_file() else f"{path.name}/" for path in (ROOT / "lpc_ray").iterdir()}
    rooms = {room for room in rooms if not room.startswith(("_", ".")) and room != "py.typed"}
    assert rooms - set(re.findall(r"`([\w./]+)`", page.read_text(encoding="utf-8"))) == set()


def test_every_field_of_a_config_and_of_the_server_is_explained():
    assert _fields(JobConfig) - _named(ROOT / "docs" / "configs.md") == set()
    assert set(ServerSettings.model_fields) - _named(ROOT / "docs" / "serving.md") == set()


def test_every_config_is_explained():
    text = (ROOT / "docs" / "configs.md").read_text(encoding="utf-8")
    configs = [path.name for path in (ROOT / "jobs" / "configs").iterdir()]
    assert [name for name in configs if f"`{name}`" not in text] == []
