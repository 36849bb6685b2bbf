"""Where a task's input files go, as its Dockerfile's WORKDIR and COPY lines say; nothing else of it is carried out."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from lpc_ray.errors import DataError
from lpc_ray.sources.text import read_text

HOME = "/root"
_NOT_INPUT = ("skills", "Dockerfile", "docker-compose.yaml", "docker-compose.yml", ".dockerignore")
_COMMENT = re.compile(r"^[ \t]*#.*\n?", re.MULTILINE)
_CONTINUED = re.compile(r"\\[ \t]*\n")


def inputs_of(environment: Path) -> tuple[str, list[tuple[Path, str]]]:
    """The working directory, and for each input (file or folder, absolute path inside).

    Without a Dockerfile every input of environment/ goes to /root. Skills go nowhere: an arm has them in its prompt, its
    prefix, or not at all.
    Raises: DataError for a line that cannot be read, or a source that environment/ does not have.
    """
    dockerfile = environment / "Dockerfile"
    if not dockerfile.exists():
        inputs = [path for path in sorted(environment.glob("*")) if path.name not in _NOT_INPUT]
        return HOME, [(path, f"{HOME}/{path.name}") for path in inputs]
    workdir, copies = HOME, []
    for where, command, rest in _lines(dockerfile):
        if command == "WORKDIR":
            workdir = _absolute(_workdir(rest, where), workdir)
            continue
        flags, words = _copy(rest, where)
        if not any(flag.startswith("--from") for flag in flags):
            copies += _copied(environment, words, workdir, where)
    return workdir, copies


def _lines(dockerfile: Path) -> Iterator[tuple[str, str, str]]:
    """(place, WORKDIR or COPY, what follows) in order; a backslash at a line's end joins the next one to it."""
    text = _COMMENT.sub("", read_text(dockerfile, "skillsbench"))
    for line in _CONTINUED.sub(" ", text).splitlines():
        command, rest = _first(line)
        if command.upper() in ("WORKDIR", "COPY"):
            yield f"skillsbench {dockerfile}: got {line.strip()!r}", command.upper(), rest


def _first(text: str) -> tuple[str, str]:
    """A text's first word and what follows it."""
    first, _, rest = text.strip().replace("\t", " ").partition(" ")
    return first, rest.strip()


def _words(text: str, where: str, wanted: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise DataError(f"{where}, wanted {wanted}: {str(error).lower()}") from error


def _workdir(rest: str, where: str) -> str:
    words = _words(rest, where, "one path")
    if len(words) != 1:
        raise DataError(f"{where}, wanted one path")
    return words[0]


def _copy(rest: str, where: str) -> tuple[list[str], list[str]]:
    """The flags of a COPY line, and its sources with the target, written as words or as a JSON list."""
    flags = []
    while rest.startswith("--"):
        flag, rest = _first(rest)
        flags.append(flag)
    words = _json_list(rest) or _words(rest, where, "sources and a target")
    if len(words) < 2:
        raise DataError(f"{where}, wanted sources and a target")
    return flags, words


def _json_list(text: str) -> list[str] | None:
    """The texts in a JSON list; None for anything else, which Docker reads as words."""
    try:
        words = json.loads(text)
    except ValueError:
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def _copied(environment: Path, words: list[str], workdir: str, where: str) -> list[tuple[Path, str]]:
    """One COPY line: a folder's contents are copied, a file goes into a target that ends in / or has company."""
    *patterns, target = words
    into = _absolute(target, workdir)
    sources = [path for pattern in patterns for path in _sources(environment, pattern, where)]
    found = []
    for source in sources:
        if source.is_dir():
            children = [child for child in sorted(source.iterdir()) if _is_input(environment, child)]
            found += [(child, f"{into}/{child.name}") for child in children]
        elif _is_input(environment, source):
            is_folder = target.endswith(("/", ".")) or len(sources) > 1
            found.append((source, f"{into}/{source.name}" if is_folder else into))
    return found


def _sources(environment: Path, pattern: str, where: str) -> list[Path]:
    """What a COPY source names; nothing for what is no input, whether it is there or not."""
    parts = PurePosixPath(pattern.lstrip("/")).parts
    if not parts:
        return [environment]
    if parts[0] in _NOT_INPUT:
        return []
    if ".." in parts:
        raise DataError(f"{where}, wanted sources inside {environment}")
    exact = environment.joinpath(*parts)
    try:
        found = [exact] if exact.exists() else sorted(environment.glob("/".join(parts)))
    except ValueError as error:
        raise DataError(f"{where}, wanted a source that can be looked for: {error}") from error
    if not found:
        raise DataError(f"{where}, wanted sources that are there: {environment} has no {pattern!r}")
    return found


def _is_input(environment: Path, path: Path) -> bool:
    return path.relative_to(environment).parts[0] not in _NOT_INPUT


def _absolute(path: str, workdir: str) -> str:
    return str(Path(workdir) / path)
