"""Foreign formats: PEFT adapters, Cartridges files, KNLP skills and connector payloads → keys and values, and back.

A file from outside is hostile until shown otherwise: no code in it runs, its shapes are held against the model before
anything is copied, and what does not fit is refused in one line. Each format is a file.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Literal, get_args

from lpc_ray.artifacts.formats import cartridges, knlp, peft
from lpc_ray.artifacts.formats.layers import Foreign, Layout
from lpc_ray.artifacts.formats.untrusted import new_folder
from lpc_ray.artifacts.handles import MANIFEST_FILE
from lpc_ray.artifacts.manifest import Manifest
from lpc_ray.errors import ArtifactError, ConfigError
from lpc_ray.model.identity import ModelIdentity

ImportFormat = Literal["cartridges", "peft", "knlp"]
ExportFormat = Literal["cartridges", "peft", "peft_prefix_tuning"]
IMPORT_FORMATS: tuple[ImportFormat, ...] = get_args(ImportFormat)
EXPORT_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)

__all__ = [
    "EXPORT_FORMATS",
    "IMPORT_FORMATS",
    "ExportFormat",
    "Foreign",
    "ImportFormat",
    "read_foreign",
    "write_foreign",
]


def read_foreign(path: Path, format: ImportFormat, identity: ModelIdentity, layout: Layout | None = None) -> Foreign:
    """The prefix in a foreign file or folder, as keys and values of the model that `identity` names.

    layout: of KNLP payloads whose axes cannot be distinguished. Raises: ArtifactError for anything that does not fit,
    ConfigError for a layout where the format has only one.
    """
    if layout is not None and format != "knlp":
        raise ConfigError(f"layout: got {layout}, wanted none for {format}, whose axes are always distinguished")
    if not os.path.lexists(path):
        raise ArtifactError(f"{path}: does not exist")
    match format:
        case "cartridges":
            return cartridges.read(path, identity)
        case "peft":
            return peft.read(path, identity)
        case "knlp":
            return knlp.read(path, identity, layout)


def write_foreign(out: Path, format: ExportFormat, manifest: Manifest, keys, values) -> list[str]:
    """Write keys and values [L, P, H, D] into the new folder `out`, whole or not at all; returns the names of its files.

    The manifest goes with them: no foreign format has a place for provenance, costs and verification.
    Raises: ArtifactError when `out` exists already, StorageError.
    """
    with new_folder(out) as folder:
        match format:
            case "cartridges":
                cartridges.write(folder, manifest, keys, values)
            case "peft":
                peft.write(folder, manifest, keys, values, "CARTRIDGE")
            case "peft_prefix_tuning":
                peft.write(folder, manifest, keys, values, "PREFIX_TUNING")
        written = json.dumps(asdict(manifest), indent=1, ensure_ascii=False, sort_keys=True)
        (folder / MANIFEST_FILE).write_text(written, encoding="utf-8")
        return sorted(file.name for file in folder.iterdir())
