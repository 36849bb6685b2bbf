"""The numbers of a model, named by one hash, however they are cut into files.

Every tensor is hashed once per file: what was found is kept below `weights_cache()` under the file's identity on this
machine, so that a second process reads a header's worth instead of 16 GB.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from blake3 import blake3

from lpc_ray.errors import ConfigError, StorageError
from lpc_ray.model.embedded import model_file, weights_cache
from lpc_ray.model.finding import PICKLED, WHOLE, indexed
from lpc_ray.records import digest_of
from lpc_ray.storage import Store

_TORCH_NAMES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_DERIVED = "rotary_emb.inv_freq"  # older checkpoints hold it; every engine computes it
_EXPONENTS = {
    "F64": ("<u8", 0x7FF << 52),
    "F32": ("<u4", 0xFF << 23),
    "BF16": ("<u2", 0xFF << 7),
    "F16": ("<u2", 0x1F << 10),
}
_LOOKED_AT_BYTES = 8 << 20
_MAX_HEADER_BYTES = 100 << 20


class Tensor(NamedTuple):
    """dtype: as safetensors names it, of the fewest bits that hold the numbers; hash: BLAKE3 of the bytes, 32 digits."""

    dtype: str
    shape: tuple[int, ...]
    hash: str


def weights_hash(model: str, revision: str | None, tied_shape: tuple[int, int] | None) -> str:
    """The hash of all tensors by name: the same in one file or in shards, beside other files, as safetensors or as
    PyTorch's own files, with bfloat16 numbers kept as bfloat16 or as float32.

    model: a folder or Hugging Face id, whose files are fetched. tied_shape: of the embedding, where the output head is
    tied to it; then it makes no difference whether the head is stored as well.
    Raises: ConfigError for a model without weights, with damaged ones, or with two files that contradict each
    other; one that names tensor and file for a number that is not finite.
    """
    found: dict[str, Tensor] = {}
    for file in weight_files(model, revision):
        for name, tensor in _tensors_of(file).items():
            if found.setdefault(name, tensor) != tensor:
                raise ConfigError(f"model {model!r}: got two different tensors {name} in its weight files, wanted one")
    found = {name: tensor for name, tensor in found.items() if not name.endswith(_DERIVED)}
    tied = {name: tensor for name, tensor in found.items() if tensor.shape == tied_shape}
    if len(set(tied.values())) == 1:
        found = {"tied": next(iter(tied.values())), **{name: one for name, one in found.items() if name not in tied}}
    return digest_of(sorted((name, *tensor) for name, tensor in found.items()))


def weight_files(model: str, revision: str | None = None) -> list[Path]:
    """The files that transformers and vLLM read a model's weights from. Raises: ConfigError where they would differ."""
    for whole in (WHOLE, PICKLED):
        single, index = model_file(model, whole, revision), model_file(model, f"{whole}.index.json", revision)
        if index is not None:
            files = [_shard(model, name, revision) for name in indexed(model, index)]
            if single is not None and single not in files:
                raise ConfigError(f"model {model!r}: got {whole} and an index of other files, wanted one of the two")
            return files
        if single is not None:
            return [single, *_read_as_well(single)]
    raise ConfigError(f"model {model!r}: got no weights, wanted {WHOLE} or its shards with {WHOLE}.index.json")


def _shard(model: str, name: str, revision: str | None) -> Path:
    file = model_file(model, name, revision)
    if file is None:
        raise ConfigError(f"model {model!r}: {name} is missing, which its index of weights names")
    return file


def _read_as_well(single: Path) -> list[Path]:
    """Other files with tensors of `single`'s names: without an index, vLLM reads every safetensors file of a folder."""
    if single.suffix != ".safetensors":
        return []
    names = set(_tensors_of(single))
    others = (file for file in sorted(single.parent.glob("*.safetensors")) if file != single)
    return [file for file in others if names & set(_header(file))]


def _tensors_of(file: Path) -> dict[str, Tensor]:
    """The tensors in a file, hashed now or earlier. A cache that cannot be read or written costs time and nothing else."""
    cache, name = Store(str(weights_cache())), f"{_identity_of(file)}.json"
    try:
        return {key: Tensor(dtype, tuple(shape), value) for key, (dtype, shape, value) in cache.read_json(name).items()}
    except (StorageError, ValueError, TypeError, AttributeError):
        found = dict(_pickled(file) if file.suffix == ".bin" else _safetensors(file))
    if name == f"{_identity_of(file)}.json":
        try:
            cache.write_json(name, found)
        except StorageError:
            return found
    return found


def _identity_of(file: Path) -> str:
    """Of the file that a link points to. ctime tells files apart whose mtime was set, as copies and archives do."""
    status = file.stat()
    return digest_of(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _safetensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    header, start = _header(file), _header_bytes(file)
    data = np.memmap(file, np.uint8, mode="r")
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        if not 0 <= first <= end <= len(data) - start:
            raise ConfigError(f"{file}: cut short: got {len(data)} bytes, wanted {start + end}")
        numbers = data[start + first : start + end]
        _check_finite(numbers, entry["dtype"], f"{file}: tensor {name}")
        yield name, hashed(entry["dtype"], entry["shape"], numbers)


def _header_bytes(file: Path) -> int:
    with open(file, "rb") as source:
        return 8 + int.from_bytes(source.read(8), "little")


def _header(file: Path) -> dict[str, dict[str, Any]]:
    """Tensor name → dtype, shape, data_offsets."""
    if not file.is_file():
        raise ConfigError(f"{file}: got a folder, pipe or device, wanted a file")
    try:
        with open(file, "rb") as source:
            length = int.from_bytes(source.read(8), "little")
            header = json.loads(source.read(length)) if length <= _MAX_HEADER_BYTES else None
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}  # pyright: ignore
        for entry in entries.values():
            numbers = [*entry["shape"], *entry["data_offsets"]]
            if not isinstance(entry["dtype"], str) or any(type(one) is not int for one in numbers):
                raise ValueError
            _, _ = entry["data_offsets"]
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file}: got no safetensors file") from error
    return entries


def _pickled(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Of a file that `torch.save` wrote; no code in it runs."""
    import torch

    try:
        state = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        pairs = [(str(name), tensor.detach().contiguous()) for name, tensor in state.items()]
    except Exception as error:  # a hostile file may fail in any way the unpickler knows
        raise ConfigError(f"{file}: got no PyTorch file of tensors alone, wanted safetensors") from error
    for name, tensor in pairs:
        dtype = str(tensor.dtype).removeprefix("torch.")
        numbers = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.zeros(0, np.uint8)
        _check_finite(numbers, _TORCH_NAMES.get(dtype, dtype), f"{file}: tensor {name}")
        yield name, hashed(_TORCH_NAMES.get(dtype, dtype), tensor.shape, numbers)


def _check_finite(data: np.ndarray, dtype: str, where: str) -> None:
    """data: uint8 [bytes of the tensor], little-endian. Raises: ConfigError for a number that is none or infinite."""
    if dtype not in _EXPONENTS:
        return
    kind, exponent = _EXPONENTS[dtype]
    size = np.dtype(kind).itemsize
    for start in range(0, len(data) - size + 1, _LOOKED_AT_BYTES):
        words = data[start : start + _LOOKED_AT_BYTES]
        odd = (words[: len(words) // size * size].view(kind) & exponent) == exponent
        if odd.any():
            place = start // size + int(odd.argmax())
            raise ConfigError(f"{where}: got NaN or infinity as number {place}, wanted weights that are all finite")


def hashed(dtype: str, shape: Any, data: np.ndarray) -> Tensor:
    """data: uint8 [bytes of the tensor], little-endian. float32 numbers that are all bfloat16's are hashed as those."""
    if dtype == "F32" and len(data) % 4 == 0:
        halves = data.reshape(-1, 2, 2)
        if not halves[:4096, 0].any() and not halves[:, 0].any():
            dtype, data = "BF16", np.ascontiguousarray(halves[:, 1])
    digest = blake3(data.data, max_threads=blake3.AUTO).hexdigest()[:32]
    return Tensor(dtype, tuple(shape), digest)
