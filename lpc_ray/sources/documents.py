"""Raw material: paths → Documents → Chunks."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path

from lpc_ray.errors import DataError
from lpc_ray.records import Chunk, Document, digest_of
from lpc_ray.sources import gsm8k, longhealth
from lpc_ray.sources.skillsbench import loaded_skills
from lpc_ray.sources.text import read_text

TEXT_SUFFIXES = (".txt", ".md", ".markdown", ".rst")
Encode = Callable[[str], list[tuple[int, int]]]


def read_documents(paths: Iterable[str | Path]) -> list[Document]:
    """One Document per text or Markdown file; a folder stands for all such files below it, in the order of their paths.

    A folder of skills (NAME/SKILL.md), or a SkillsBench task that has one, is one Document: its skills as they are loaded
    into a prompt. `FILE#PART` is a part of a data set: of GSM8K's JSONL the first PART problems, of LongHealth's JSON the
    record of patient PART.
    Raises: DataError for a path that does not exist, a folder without such files, a file that is empty or
    no UTF-8 text, or two with the same text.
    """
    documents = []
    for path in map(Path, paths):
        skills = loaded_skills(path) or loaded_skills(path / "environment" / "skills")
        if "#" in path.name:
            documents.append(_part(path))
        elif skills:
            documents.append(Document(name=path.name, text=skills, digest=digest_of(skills)))
        elif path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.suffix.lower() in TEXT_SUFFIXES and file.is_file())
            if not files:
                raise DataError(f"source {path}: got a folder without {', '.join(TEXT_SUFFIXES)} files")
            documents += [_read(file, name=file.relative_to(path).as_posix()) for file in files]
        else:
            documents.append(_read(path, name=path.name))
    _check_distinct(documents)
    return documents


def _check_distinct(documents: list[Document]) -> None:
    names: dict[str, str] = {}
    for document in documents:
        if document.digest in names:
            raise DataError(f"source {document.name}: got the same text as {names[document.digest]}, wanted each once")
        names[document.digest] = document.name


def _part(path: Path) -> Document:
    name, _, part = path.name.rpartition("#")
    file = path.with_name(name)
    if file.suffix == ".jsonl":
        text = gsm8k.demonstrations(gsm8k.first_problems(path))
    else:
        patients = longhealth.read_patients(file)
        if part not in patients or not patients[part].record:
            raise DataError(
                f"source {path}: got {part!r} after #, wanted a patient with a record: {', '.join(patients)}"
            )
        text = patients[part].record
    return Document(name=path.name, text=text, digest=digest_of(text))


def _read(path: Path, name: str) -> Document:
    text = read_text(path, "source").replace("\r\n", "\n")
    if not text.strip():
        raise DataError(f"source {path}: got an empty document")
    return Document(name=name, text=text, digest=digest_of(text))


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
