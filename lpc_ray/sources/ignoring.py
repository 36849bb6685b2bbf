"""`.gitignore` and `.ignore` files: what the owner of a folder has said is no part of it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore import GitIgnorePatternError

from lpc_ray.errors import DataError

_NAMES = (".gitignore", ".ignore")


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """One file of patterns, which hold for what lies below its folder."""

    path: Path
    spec: GitIgnoreSpec

    def ignores(self, path: Path, is_folder: bool) -> bool | None:
        """Whether its last pattern that fits `path` leaves it out; None where none fits."""
        relative = path.relative_to(self.path.parent).as_posix()
        return self.spec.check_file(f"{relative}/" if is_folder else relative).include


def ignore_files(folder: Path) -> list[IgnoreFile]:
    """The ignore files in `folder`, the weaker first. A line that git would not understand says nothing.

    Raises: DataError for one that cannot be read.
    """
    return [IgnoreFile(folder / name, _spec(folder / name)) for name in _NAMES if (folder / name).is_file()]


def ignore_files_above(folder: Path) -> list[IgnoreFile]:
    """Those of the git checkout that an absolute `folder` lies in, from its root down; none where they ignore the folder
    itself, which is then wanted all the same.
    """
    above = list(folder.parents)
    root = next((place for place, parent in enumerate(above) if (parent / ".git").exists()), None)
    if root is None or (folder / ".git").exists():
        return []
    found = [one for parent in reversed(above[: root + 1]) for one in ignore_files(parent)]
    return [] if ignoring(folder, True, found) else found


def ignoring(path: Path, is_folder: bool, files: Sequence[IgnoreFile]) -> IgnoreFile | None:
    """Which of `files` leaves `path` out, as git decides it: the deepest that says anything of it has the last word."""
    for one in reversed(files):
        answer = one.ignores(path, is_folder)
        if answer is not None:
            return one if answer else None
    return None


def _spec(path: Path) -> GitIgnoreSpec:
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise DataError(f"source {path}: {error.strerror or error}") from error
    return GitIgnoreSpec.from_lines(_understood(lines))


def _understood(lines: Iterable[str]) -> list[str]:
    found = []
    for line in lines:
        try:
            GitIgnoreSpec.from_lines([line])
        except (GitIgnorePatternError, re.error):
            continue
        found.append(line)
    return found
