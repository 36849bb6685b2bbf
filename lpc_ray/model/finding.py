"""A model by its name: a folder or an id on the Hugging Face hub, and one line for each way it is not found."""

import difflib
import json
from pathlib import Path

from lpc_ray.errors import ConfigError

WHOLE, PICKLED = "model.safetensors", "pytorch_model.bin"
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
_WANTED = f"a folder with {CONFIG}, {TOKENIZER} and {WHOLE}"
_LFS = b"version https://git-lfs"


def check_named(model: str, embedded: str) -> None:
    """Raises: ConfigError for what is neither a folder that holds a model nor of the form of a hub's id; asks no hub.

    embedded: the name of the model that needs neither, for whoever misspells it.
    """
    path = Path(model)
    if path.is_dir():
        _check_folder(model, path)
        return
    if path.exists():
        raise ConfigError(f"model {model!r}: got a file, wanted {_WANTED}")
    if not _is_hub_id(model):
        raise ConfigError(f"model {model!r}: no such folder, wanted {_WANTED}, or an id on the hub (owner/name)")
    if difflib.get_close_matches(model.lower(), [embedded], cutoff=0.8):
        raise ConfigError(f"model {model!r}: no such folder; did you mean {embedded}?")


def _is_hub_id(model: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(model)
    except HFValidationError:
        return False
    return True


def _check_folder(model: str, folder: Path) -> None:
    here = f"model {model!r}"
    try:
        names = {file.name for file in folder.iterdir()}
    except OSError as error:
        raise ConfigError(f"{here}: cannot be read: {error.strerror}") from error
    if not names:
        raise ConfigError(f"{here}: got an empty folder, wanted {_WANTED}")
    for name in (CONFIG, TOKENIZER):
        if name not in names:
            raise ConfigError(f"{here}: got a folder without {name}, wanted {_WANTED}")
    for whole in (WHOLE, PICKLED):
        index = f"{whole}.index.json"
        files = indexed(model, folder / index) if index in names else [whole] if whole in names else []
        for name in files:
            if not (folder / name).exists():
                raise ConfigError(f"{here}: {name} is missing, which {index} names")
        for name in [CONFIG, TOKENIZER, *files] if files else ():
            if not (folder / name).is_file():
                raise ConfigError(f"{here}: {name}: got a folder, pipe or device, wanted a file")
            if _starts_with(folder / name, _LFS):
                raise ConfigError(f"{here}: {name}: got Git LFS's pointer, wanted the file itself (git lfs pull)")
        if files:
            return
    other = sorted(name for name in names if name.endswith((".gguf", ".safetensors", ".pt", ".bin")))
    got = f"{', '.join(other[:3])} and no weights that are read" if other else "no weights"
    raise ConfigError(f"{here}: got {got}, wanted {WHOLE} or its shards with {WHOLE}.index.json")


def indexed(model: str, index: Path) -> list[str]:
    """The names of the weight files that an index lists. Raises: ConfigError."""
    try:
        names = {str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(f"model {model!r}: {index.name}: got no index of weight files (weight_map)") from error
    if not names or any(Path(name).name != name for name in names):
        raise ConfigError(f"model {model!r}: {index.name}: got {sorted(names)[:3]}, wanted names of files beside it")
    return sorted(names)


def _starts_with(file: Path, beginning: bytes) -> bool:
    try:
        with open(file, "rb") as source:
            return source.read(len(beginning)) == beginning
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error


def hub_file(model: str, name: str, revision: str | None) -> Path | None:
    """A file of a model on the hub, fetched or from the cache; None when the model has no such file.

    Raises: ConfigError in one line: no network and no copy here, an id or revision that does not exist or is private.
    """
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        if not (_is_here(model, name, revision) or constants.HF_HUB_OFFLINE):
            # Fails at once, where a download tries again for half a minute.
            get_hf_file_metadata(hf_hub_url(model, name, revision=revision), timeout=constants.HF_HUB_ETAG_TIMEOUT)
        return Path(hf_hub_download(model, name, revision=revision))
    except errors.RemoteEntryNotFoundError:
        return None
    except errors.RevisionNotFoundError:
        reason = f"got revision {revision!r}, which the hub does not have"
    except errors.GatedRepoError:
        reason = "its licence must be accepted on the hub, and HF_TOKEN set to a token of who accepted it"
    except errors.RepositoryNotFoundError:
        reason = "no folder of that name, and no model on the hub; for a private one set HF_TOKEN"
    except errors.HFValidationError:
        reason = f"no such folder, wanted {_WANTED}, or an id on the hub (owner/name)"
    except Exception as error:  # the hub's client and what lies below it fail in their own ways
        if _is_here(model, CONFIG, revision):
            return None  # the copy here does without
        reason = f"no folder of that name and no copy from the hub, which cannot be asked now: {_cause(error)}"
    raise ConfigError(f"model {model!r}: {reason}")


def _is_here(model: str, name: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(model, name, revision=revision), str)


def _cause(error: BaseException) -> str:
    """The innermost cause in one line."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return " ".join(str(error).split())[:200] or type(error).__name__
