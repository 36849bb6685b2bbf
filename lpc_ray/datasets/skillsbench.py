"""SkillsBench tasks in both of upstream's layouts, their skills, and the prompts made of them.

January 2026: instruction.md, task.toml, environment/, solution/, tests/. Schema 1.3: task.md (YAML front matter, then the
instruction), environment/, oracle/, verifier/. Skills lie in environment/skills/NAME/SKILL.md.
"""

import shlex
import tomllib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from lpc_ray.errors import DataError
from lpc_ray.records import digest_of
from lpc_ray.textfile import read_text

HOME = "/root"
SKILL_FILE = "SKILL.md"
_REPLY_FORM = "\nReply with one complete Python 3 program in a ```python block. It is run offline, as root, in /root."
_SKILLS_HEAD, _TASK_HEAD = "# Skills\n\n", "\n\n# Task:\n\n"
_NOT_INPUT = ("skills", "Dockerfile", "docker-compose.yaml", "docker-compose.yml", ".dockerignore")


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
        return loaded_skills(self.environment / "skills")

    @property
    def digest(self) -> str:
        """Covers every file that a score depends on."""
        parts = [folder for folder in (self.environment, self.tests, self.solution) if folder and folder.is_dir()]
        files = sorted(file for part in parts for file in part.rglob("*") if file.is_file())
        told = [[file.relative_to(self.folder).as_posix(), sha256(file.read_bytes()).hexdigest()] for file in files]
        return digest_of(self.instruction, self.timeout_seconds, told)


def read_tasks(folder: Path) -> dict[str, Task]:
    """Name → task, of every task folder directly in `folder`, by name. Raises: DataError when there is none."""
    found = [path for path in sorted(folder.iterdir()) if _is_task(path)] if folder.is_dir() else []
    if not found:
        raise DataError(f"skillsbench {folder}: got no folder with instruction.md or task.md in it")
    return {path.name: read_task(path) for path in found}


def read_task(folder: Path) -> Task:
    """Raises: DataError for a folder that is no task, or metadata that cannot be read."""
    if (folder / "instruction.md").exists():
        instruction = read_text(folder / "instruction.md", "skillsbench")
        metadata = _toml(folder / "task.toml") if (folder / "task.toml").exists() else {}
        tests, solution = folder / "tests", folder / "solution"
    else:
        metadata, instruction = _front_matter(folder / "task.md")
        tests, solution = folder / "verifier", folder / "oracle"
    if not instruction.strip():
        raise DataError(f"skillsbench {folder}: got an empty instruction")
    verifier = metadata.get("verifier")
    timeout = verifier.get("timeout_sec", 600.0) if isinstance(verifier, dict) else 600.0
    return Task(
        name=folder.name,
        folder=folder,
        instruction=instruction,
        tests=tests if any(tests.glob("test_*.py")) else None,
        solution=solution if (solution / "solve.sh").exists() else None,
        timeout_seconds=float(timeout),
    )


def _is_task(folder: Path) -> bool:
    return (folder / "instruction.md").exists() or (folder / "task.md").exists()


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path, "skillsbench"))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"skillsbench {path}: not TOML: {error}") from error


def _front_matter(path: Path) -> tuple[dict[str, Any], str]:
    text = read_text(path, "skillsbench")
    head, closed, body = text.removeprefix("---\n").partition("\n---\n")
    try:
        metadata = yaml.safe_load(head) if text.startswith("---\n") and closed else None
    except yaml.YAMLError as error:
        raise DataError(f"skillsbench {path}: front matter is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(metadata, dict):
        raise DataError(f"skillsbench {path}: wanted YAML front matter between two lines of ---")
    return metadata, body.removeprefix("\n")


def loaded_skills(folder: Path) -> str:
    """The skills below `folder` in the order of their names, each under its own heading; "" where there are none."""
    files = sorted(folder.glob(f"*/{SKILL_FILE}")) if folder.is_dir() else []
    return "\n".join(f"### Skill: {file.parent.name}\n\n{read_text(file, 'skill')}" for file in files)


def no_skill_prompt(task: Task) -> str:
    """What every arm is asked whose skill is not in the prompt: the instruction and the form of the reply."""
    return task.instruction + _REPLY_FORM


def skill_prompt(skills: str, task: Task) -> str:
    """The no-skill prompt after the skills, whole or cut."""
    return _SKILLS_HEAD + skills + _TASK_HEAD + no_skill_prompt(task)


def placements(task: Task) -> tuple[str, list[tuple[Path, str]]]:
    """The working directory, and where the task's input files go: (file or folder, absolute path inside).

    As the Dockerfile's WORKDIR and COPY lines say; nothing else of it is carried out. Without one, every input of
    environment/ goes to /root. Skills go nowhere: an arm has them in its prompt, its prefix, or not at all.
    """
    dockerfile = task.environment / "Dockerfile"
    inputs = [path for path in sorted(task.environment.glob("*")) if path.name not in _NOT_INPUT]
    if not dockerfile.exists():
        return HOME, [(path, f"{HOME}/{path.name}") for path in inputs]
    workdir, copies = HOME, []
    for words in _dockerfile_lines(read_text(dockerfile, "skillsbench")):
        if words[0] == "WORKDIR" and len(words) == 2:
            workdir = _absolute(words[1], workdir)
        elif words[0] == "COPY" and len(words) >= 3 and not words[1].startswith("--from"):
            copies += _copied(task.environment, [word for word in words[1:] if not word.startswith("--")], workdir)
    return workdir, copies


def _dockerfile_lines(text: str) -> list[list[str]]:
    lines = text.replace("\\\n", " ").splitlines()
    found = [line.split(None, 1) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return [
        [line[0].upper(), *shlex.split(line[1], comments=False)]
        for line in found
        if line[0].upper() in ("WORKDIR", "COPY") and len(line) == 2
    ]


def _copied(environment: Path, words: list[str], workdir: str) -> list[tuple[Path, str]]:
    """One COPY line: a folder's contents are copied, a file goes into a target that ends in / or has company."""
    *patterns, target = words
    where = _absolute(target, workdir)
    sources = [
        path
        for pattern in patterns
        for path in (sorted(environment.glob(pattern.strip("/"))) if pattern.strip("./") else [environment])
    ]
    found = []
    for source in sources:
        if source == environment or source.is_dir() and source.name not in _NOT_INPUT:
            children = [child for child in sorted(source.iterdir()) if child.name not in _NOT_INPUT]
            found += [(child, f"{where}/{child.name}") for child in children]
        elif source.name not in _NOT_INPUT:
            is_folder = target.endswith(("/", ".")) or len(sources) > 1
            found.append((source, f"{where}/{source.name}" if is_folder else where))
    return found


def _absolute(path: str, workdir: str) -> str:
    return str(Path(workdir) / path)
