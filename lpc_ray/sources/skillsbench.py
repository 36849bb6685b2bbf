"""SkillsBench tasks in both of upstream's layouts, their skills, and the prompts made of them.

January 2026: instruction.md, task.toml, environment/, solution/, tests/. Schema 1.3: task.md (YAML front matter, then the
instruction), environment/, oracle/, verifier/. Skills lie in environment/skills/NAME/SKILL.md.
"""

import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from lpc_ray.errors import DataError
from lpc_ray.records import Document, digest_of
from lpc_ray.sources.dockerfile import inputs_of
from lpc_ray.sources.front_matter import parted
from lpc_ray.sources.text import is_blank, read_text, spelled

SKILL_FILE = "SKILL.md"
SKILL_HEADING = "### Skill: "
DEFAULT_TIMEOUT = 600.0
_REPLY_FORM = "\nReply with one complete Python 3 program in a ```python block. It is run offline, as root, in /root."
_SKILLS_HEAD, _TASK_HEAD = "# Skills\n\n", "\n\n# Task:\n\n"


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `tests` and `solution` are None where the folder has none. `timeout_seconds`: the verifier's."""

    name: str
    folder: Path
    instruction: str
    tests: Path | None
    solution: Path | None
    timeout_seconds: float

    @property
    def environment(self) -> Path:
        return self.folder / "environment"

    @property
    def skills(self) -> str:
        return loaded(skill_files(self.environment / "skills"))

    @property
    def digest(self) -> str:
        """Covers every file that a score depends on, and none that Python or a Mac leaves beside them. Raises: DataError."""
        parts = [folder for folder in (self.environment, self.tests, self.solution) if folder and folder.is_dir()]
        try:
            files = sorted(
                file for part in parts for file in part.rglob("*") if file.is_file() and not _is_litter(file)
            )
            hashes = [
                [file.relative_to(self.folder).as_posix(), sha256(file.read_bytes()).hexdigest()] for file in files
            ]
        except OSError as error:
            raise DataError(f"skillsbench {error.filename or self.folder}: {error.strerror or error}") from error
        return digest_of(self.instruction, self.timeout_seconds, hashes)


def read_tasks(folder: Path) -> dict[str, Task]:
    """Name → task, of every task folder directly in `folder`, by name. Raises: DataError when there is none."""
    try:
        found = [path for path in sorted(folder.iterdir()) if _is_task(path)] if folder.is_dir() else []
    except OSError as error:
        raise DataError(f"skillsbench {error.filename or folder}: {error.strerror or error}") from error
    if not found:
        raise DataError(f"skillsbench {folder}: got no folder with instruction.md or task.md in it")
    return {spelled(path.name): read_task(path) for path in found}


def read_task(folder: Path) -> Task:
    """Raises: DataError for a folder that is no task, or metadata that cannot be read."""
    if (folder / "instruction.md").exists():
        instruction = read_text(folder / "instruction.md", "skillsbench")
        settings_file = folder / "task.toml"
        metadata = _toml(settings_file) if settings_file.exists() else {}
        tests, solution = folder / "tests", folder / "solution"
    else:
        settings_file = folder / "task.md"
        metadata, instruction = _front_matter(settings_file)
        tests, solution = folder / "verifier", folder / "oracle"
    if not instruction.strip():
        raise DataError(f"skillsbench {folder}: got an empty instruction")
    return Task(
        name=spelled(folder.name),
        folder=folder,
        instruction=instruction,
        tests=tests if any(tests.glob("test_*.py")) else None,
        solution=solution if (solution / "solve.sh").exists() else None,
        timeout_seconds=_timeout(metadata.get("verifier"), settings_file),
    )


def _timeout(verifier: Any, path: Path) -> float:
    where = f"skillsbench {path}: verifier"
    if verifier is None:
        return DEFAULT_TIMEOUT
    if not isinstance(verifier, dict):
        raise DataError(f"{where}: got {verifier!r}, wanted a table of settings")
    seconds = verifier.get("timeout_sec", DEFAULT_TIMEOUT)
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= sys.float_info.max:
        raise DataError(f"{where}.timeout_sec: got {seconds!r}, wanted a number of seconds above 0")
    return float(seconds)


def _is_litter(file: Path) -> bool:
    return file.name.startswith("._") or file.name == ".DS_Store" or "__pycache__" in file.parts


def _is_task(folder: Path) -> bool:
    return (folder / "instruction.md").exists() or (folder / "task.md").exists()


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path, "skillsbench"))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"skillsbench {path}: not TOML: {error}") from error


def _front_matter(path: Path) -> tuple[dict[str, Any], str]:
    metadata, instruction = parted(read_text(path, "skillsbench"), f"skillsbench {path}")
    if metadata is None:
        raise DataError(f"skillsbench {path}: wanted YAML front matter between two lines of ---")
    return metadata, instruction


def skill_files(folder: Path) -> list[Path]:
    """Every NAME/SKILL.md directly below `folder` that is not hidden, in the order of their names."""
    files = folder.glob(f"*/{SKILL_FILE}") if folder.is_dir() else []
    return sorted(file for file in files if not file.parent.name.startswith("."))


def loaded(files: Iterable[Path]) -> str:
    """Skills as one text, each under its own heading. Raises: DataError as `check_skill`."""
    texts = ((file, read_text(file, "skill")) for file in files)
    return "\n".join(f"{SKILL_HEADING}{spelled(file.parent.name)}\n\n{check_skill(text, file)}" for file, text in texts)


def is_skill(document: Document) -> bool:
    """Whether a document is a SKILL.md, or skills as they are loaded."""
    return document.name == SKILL_FILE or document.text.startswith(SKILL_HEADING)


def check_skill(text: str, file: Path) -> str:
    """The text of a SKILL.md, as it is. Raises: DataError for an empty one, one of front matter alone, and for front matter
    that does not end or is no YAML mapping.
    """
    where = f"skill {file}"
    if is_blank(text):
        raise DataError(f"{where}: got an empty file, wanted the skill's text")
    if is_blank(parted(text, where)[1]):
        raise DataError(f"{where}: got front matter alone, wanted the skill's text behind it")
    return text


def no_skill_prompt(task: Task) -> str:
    """What every arm is asked whose skill is not in the prompt: the instruction and the form of the reply."""
    return task.instruction + _REPLY_FORM


def skill_prompt(skills: str, task: Task) -> str:
    """The no-skill prompt after the skills, whole or cut."""
    return _SKILLS_HEAD + skills + _TASK_HEAD + no_skill_prompt(task)


def placements(task: Task) -> tuple[str, list[tuple[Path, str]]]:
    """The working directory, and where the task's input files go (`lpc_ray.sources.dockerfile`)."""
    return inputs_of(task.environment)
