"""Raw material: paths → Documents → Chunks."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lpc_ray.errors import DataError
from lpc_ray.records import Chunk, Document, digest_of
from lpc_ray.sources import gsm8k, longhealth
from lpc_ray.sources.folder import TEXT_SUFFIXES, LeftOut, in_words, texts_in
from lpc_ray.sources.skillsbench import SKILL_FILE, check_skill, loaded, skill_files
from lpc_ray.sources.text import check_no_url, expanded, is_blank, read_text, spelled

MOST_BYTES = 32 * 1024**2  # of all sources: as tokens they take 150 times as much memory
Encode = Callable[[str], list[tuple[int, int]]]


@dataclass(frozen=True)
class Sources:
    """`documents`: in the order of the paths named. `left_out`: what lies in the folders named and is in no document."""

    documents: list[Document] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def read_sources(paths: Iterable[str | Path]) -> Sources:
    """One Document per text or Markdown file; a folder stands for all such files below it, in the order of their paths, but
    for what is hidden, ignored by `.gitignore` or `.ignore`, made by a tool, or empty.

    A folder's skills (NAME/SKILL.md) are one Document, before its other files: they are as they are loaded into a prompt. Of
    a SkillsBench task that has skills they are all that is read. `FILE#PART`, where no file has that whole name, is a part of
    a data set: of GSM8K's JSONL the first PART problems, of LongHealth's JSON the record of patient PART.
    Raises: DataError for a path that does not exist, a folder without such files, a file that is empty, too large or
    no UTF-8 text, or two with the same text.
    """
    found = Sources()
    for path in paths:
        check_no_url(path, "source")
        path = expanded(path)
        if not _exists(path) and "#" in path.name:
            found.documents.append(_part(path))
        elif path.is_dir():
            _read_folder(path, found)
        else:
            text = _text(path)
            if is_blank(text):
                raise DataError(f"source {path}: got an empty document")
            found.documents.append(_document(path.name, text))
    _check_distinct(found.documents)
    _check_size(found.documents)
    return found


def read_documents(paths: Iterable[str | Path]) -> list[Document]:
    """The documents of `read_sources`."""
    return read_sources(paths).documents


def _exists(path: Path) -> bool:
    """Raises: DataError for what we may not even look at, and for what is no path."""
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise DataError(f"source {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error


def _read_folder(path: Path, found: Sources) -> None:
    name, task_skills = path.name or path.resolve().name, path / "environment" / "skills"
    is_task = bool(skill_files(task_skills))
    base = task_skills if is_task else path
    texts = texts_in(base)
    left_out = {one.path: one.reason for one in texts.left_out}
    skills = [file for file in skill_files(base) if f"{spelled(file.parent.name)}/" not in left_out]
    for file in skills:  # a skill that is a link is loaded all the same
        left_out.pop(spelled(file.parent.name), None)
        left_out.pop(spelled(file.relative_to(base).as_posix()), None)
    documents = [_document(name, loaded(skills))] if skills else []
    for file in texts.files:
        inside = spelled(file.relative_to(base).as_posix())
        if file in skills:
            continue
        if is_task or any(skill.parent in file.parents for skill in skills):
            left_out[inside] = f"beside a {SKILL_FILE}, which alone is loaded"
        elif not is_blank(text := _text(file)):
            documents.append(_document(inside, text))
        else:
            left_out[inside] = "empty"
    within = [LeftOut(f"{spelled(name)}/{inside}", reason) for inside, reason in left_out.items()]
    if not documents:
        words = "; ".join(in_words(within))
        raise DataError(
            f"source {path}: got a folder without {', '.join(TEXT_SUFFIXES)} files{words and f' ({words})'}"
        )
    found.documents.extend(documents)
    found.left_out.extend(within)


def _document(name: str, text: str) -> Document:
    return Document(name=spelled(name), text=text, digest=digest_of(text))


def _text(path: Path) -> str:
    text = read_text(path, "source", MOST_BYTES)
    return check_skill(text, path) if path.name == SKILL_FILE else text


def _check_distinct(documents: list[Document]) -> None:
    names: dict[str, str] = {}
    for document in documents:
        if document.digest in names:
            raise DataError(f"source {document.name}: got the same text as {names[document.digest]}, wanted each once")
        names[document.digest] = document.name


def _check_size(documents: list[Document]) -> None:
    size = sum(len(document.text.encode()) for document in documents)
    if size > MOST_BYTES:
        raise DataError(f"recipe.source.paths: got texts of {size:,} bytes together, wanted at most {MOST_BYTES:,}")


def _part(path: Path) -> Document:
    marks = [place for place, one in enumerate(path.name) if one == "#" and place]
    whole = {place: path.with_name(path.name[:place]) for place in reversed(marks)}
    place = next((place for place, file in whole.items() if _exists(file)), None)
    if place is None:
        wanted = (
            f" nor {', nor '.join(file.name for file in whole.values())}, of which it would be a part" if whole else ""
        )
        raise DataError(f"source {path}: got no such file{wanted}")
    file, part = whole[place], path.name[place + 1 :]
    if file.suffix == ".jsonl":
        text = gsm8k.demonstrations(gsm8k.first_problems(file, part))
    elif file.suffix == ".json":
        patients = longhealth.read_patients(file)
        if part not in patients or not patients[part].record:
            raise DataError(
                f"source {path}: got {part!r} after #, wanted a patient with a record: {', '.join(patients)}"
            )
        text = patients[part].record
    else:
        raise DataError(f"source {path}: got no such file, and a part (#{part}) only a .json or .jsonl file can have")
    return _document(path.name, text)


def sample_chunks(
    document: Document, spans: Encode, num_chunks: int, min_tokens: int, max_tokens: int, description: str, seed: int
) -> list[Chunk]:
    """Self-study's chunks: `num_chunks` windows of length L ~ U[min, max] tokens at a uniform start.

    spans: text → the (start, end) characters of each token. A document shorter than L is taken whole.
    Source: Cartridges, arXiv 2506.06266, section 4.1.
    """
    tokens = spans(document.text)
    generator = random.Random(digest_of("chunks", document.digest, num_chunks, min_tokens, max_tokens, seed))
    chunks = []
    for _ in range(num_chunks):
        length = min(generator.randint(min_tokens, max_tokens), len(tokens))
        start = generator.randint(0, len(tokens) - length)
        window = document.text[tokens[start][0] : tokens[start + length - 1][1]]
        chunks.append(Chunk(document_digest=document.digest, text=window, description=description))
    return chunks


def split_windows(document: Document, spans: Encode, window_tokens: int) -> list[Chunk]:
    """The whole document as consecutive windows of at most `window_tokens` tokens."""
    tokens = spans(document.text)
    return [
        Chunk(document_digest=document.digest, text=document.text[tokens[start][0] : tokens[stop - 1][1]])
        for start in range(0, len(tokens), window_tokens)
        for stop in [min(start + window_tokens, len(tokens))]
    ]
