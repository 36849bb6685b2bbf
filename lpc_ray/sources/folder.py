"""A folder of texts: which of its files are read, and which are left out and why."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lpc_ray.errors import DataError
from lpc_ray.sources.ignoring import IgnoreFile, ignore_files, ignore_files_above, ignoring
from lpc_ray.sources.text import spelled

TEXT_SUFFIXES = (".txt", ".md", ".markdown", ".rst")
_OF_TOOLS = ("node_modules", "bower_components", "site-packages", "__pycache__", "__MACOSX")
_MARKS_OF_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What lies in a source and is no part of it. `path`: below the source named; a folder's ends in a slash."""

    path: str
    reason: str


@dataclass
class FolderTexts:
    """`files`: in the order of their paths. `left_out`: likewise."""

    files: list[Path] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def texts_in(folder: Path) -> FolderTexts:
    """The text files below `folder`, as git and a reader would see it: without what is hidden, ignored or made by a tool.

    A link to a file is followed unless that file is read anyway, a link to a folder is not.
    Raises: DataError for a folder or an ignore file that cannot be read.
    """
    try:
        return _walked(folder, _real(folder))
    except OSError as error:
        raise DataError(f"source {error.filename or folder}: {error.strerror or error}") from error


def _walked(folder: Path, root: Path) -> FolderTexts:
    found, links = FolderTexts(), {}
    waiting = [(root, ignore_files_above(root))]
    while waiting:
        here, rules = waiting.pop()
        rules = rules + ignore_files(here)
        with os.scandir(here) as entries:
            for entry in entries:
                path, is_folder = here / entry.name, entry.is_dir(follow_symlinks=False)
                inside = path.relative_to(root)
                reason = _why_not(path, is_folder, root, rules)
                if reason is not None:
                    name = spelled(inside.as_posix())
                    found.left_out.append(LeftOut(f"{name}/" if is_folder else name, reason))
                elif is_folder:
                    waiting.append((path, rules))
                elif entry.is_symlink():
                    links[inside] = _real(path)
                else:
                    found.files.append(folder / inside)
    taken = {root / file.relative_to(folder) for file in found.files}
    for inside, target in sorted(links.items()):
        if target in taken:
            found.left_out.append(LeftOut(spelled(inside.as_posix()), "a link to a file that is read"))
        else:
            found.files.append(folder / inside)
            taken.add(target)
    found.files.sort()
    found.left_out.sort(key=lambda one: one.path)
    return found


def in_words(left_out: Iterable[LeftOut]) -> list[str]:
    """One line per reason: how many, why, and the first of them by name."""
    names: dict[str, list[str]] = {}
    for one in left_out:
        names.setdefault(one.reason, []).append(one.path)
    return [f"{len(paths)} {reason}: {_listed(paths)}" for reason, paths in names.items()]


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path, strict=True))


def _why_not(path: Path, is_folder: bool, root: Path, rules: list[IgnoreFile]) -> str | None:
    """Why `path` is left out; None where it is a text, or a folder to look into."""
    if path.name.startswith("."):
        return "hidden"
    if is_folder and path.name in _OF_TOOLS:
        return "made by a tool"
    if is_folder and any((path / mark).exists() for mark in _MARKS_OF_ENVIRONMENTS):
        return "a Python environment"
    if (rule := ignoring(path, is_folder, rules)) is not None:
        return f"ignored by {spelled(os.path.relpath(rule.path, root))}"
    if is_folder:
        return None
    if path.is_dir():
        return "a link to a folder (to have it, name it as a source)"
    if path.suffix.lower() not in TEXT_SUFFIXES:
        return f"not {', '.join(TEXT_SUFFIXES)}"
    if path.is_file():
        return None
    return "a link to nothing" if path.is_symlink() else "no regular file"
