"""The `lpc` command: learned prefix caches in a store, under handles.

    lpc list                                                  lpc inspect HANDLE        lpc verify HANDLE
    lpc import FILE --format peft --model MODEL --name HANDLE
    lpc export HANDLE --format cartridges --out DIR

HANDLE may also be a digest, or its first 8 or more digits; export and verify also take a composition `a+b`. The store is a
folder or URL that holds artifacts and handles, such as the folder of a run.
"""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from lpc_ray.errors import LPCError, PrefixNotFoundError
from lpc_ray.home import settle
from lpc_ray.storage import Store
from lpc_ray.terminal import Parser, check_output, exit_on_error, printable

if TYPE_CHECKING:
    from lpc_ray.artifacts.manifest import Manifest

DEFAULT_STORE = "lpc_library"


def main(arguments: list[str] | None = None) -> None:
    """Run one command; exits with 2 and one line for an error of the user's."""
    with exit_on_error():
        if moved := settle():
            print(moved, file=sys.stderr)
        options = _parser().parse_args(arguments)
        if options.work in (_list, _inspect):
            check_output()
        options.work(Store(options.store), options)


class _ShowVersion(argparse.Action):
    """Reads the version of the installed distribution only when it is asked for: a checkout on the path has none."""

    def __call__(self, parser: argparse.ArgumentParser, *_) -> None:
        print(f"lpc_ray {version('lpc-ray')}")
        parser.exit()


def _parser() -> Parser:
    from lpc_ray.artifacts.formats import EXPORT_FORMATS, IMPORT_FORMATS
    from lpc_ray.artifacts.formats.layers import Layout

    parser = Parser(prog="lpc", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="print the installed version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, work, help: str) -> Parser:
        added = commands.add_parser(name, help=help)
        added.add_argument("--store", metavar="URL", default=DEFAULT_STORE, help="folder or URL (default: %(default)s)")
        added.set_defaults(work=work)
        return added

    command("list", _list, "the handles of a store, and what they point to")
    command("inspect", _inspect, "identity, provenance, costs and verification of one").add_argument("handle")
    verify = command("verify", _verify, "whether its tensors are whole and made for the model")
    verify.add_argument("handle")
    verify.add_argument("--model", help="Hugging Face id or folder (default: the one it names)")
    imported = command("import", _import, "take in a prefix from another system")
    imported.add_argument("file", type=Path)
    imported.add_argument("--format", required=True, choices=IMPORT_FORMATS)
    imported.add_argument("--model", required=True, help="Hugging Face id or folder of the model it was made for")
    imported.add_argument("--revision")
    imported.add_argument("--name", required=True, metavar="HANDLE")
    imported.add_argument("--layout", choices=get_args(Layout), help="only where a file's axes cannot be distinguished")
    imported.add_argument("--align-down", type=int, metavar="TOKENS", help="drop what fills no whole block of TOKENS")
    exported = command("export", _export, "write one for another system")
    exported.add_argument("handle")
    exported.add_argument("--format", required=True, choices=EXPORT_FORMATS)
    exported.add_argument("--out", required=True, type=Path, metavar="DIR", help="a folder to make")
    return parser


def _list(store: Store, options: argparse.Namespace) -> None:
    from lpc_ray.artifacts.library import entries

    if not store.names():
        raise PrefixNotFoundError(f"--store {store}: got an empty or missing folder, wanted a library or a run")
    found = entries(store)
    if not found:
        print(f"{store}: no artifacts")
        return
    print(f"{'handle':<36} {'digest':<12} {'kind':<11} {'tokens':>6} {'MiB':>7}  {'verified':<16}  model")
    for handle, digest, manifest in found:
        if isinstance(manifest, LPCError):
            print(printable(f"{handle or '-':<36} {digest[:12] or '-':<12} {manifest}"))
            continue
        size = manifest.num_bytes / 2**20
        columns = f"{manifest.kind:<11} {manifest.num_tokens:>6} {size:>7.1f}  {_score(manifest.verification):<16}"
        origin = f"{manifest.identity.model_id}{_origin(manifest)}"
        print(printable(f"{handle or '-':<36} {digest[:12]} {columns}  {origin}"))


def _score(verification: dict[str, Any]) -> str:
    """The score on held-out cases, where there is none that on tune cases; "-": neither."""
    for split in ("held_out", "tune"):
        if (counts := _counts(verification.get(split))) is not None:
            return f"{split.replace('_', '-')} {counts}"
    return "-"


def _counts(tally: Any) -> str | None:
    """passed/total of what a manifest has recorded, which may be anything in one of another's making."""
    is_tally = isinstance(tally, dict) and set(tally) == {"passed", "total"}
    return f"{tally['passed']}/{tally['total']}" if is_tally else None


def _origin(manifest: "Manifest") -> str:
    """Where a prefix without a handle comes from: the recipe and step of an arm's checkpoint."""
    provenance = manifest.provenance
    parts = [provenance[name] for name in ("induction", "objective", "initializer") if name in provenance]
    if "optimizer_steps" in provenance:
        seed = [f"seed {provenance['training_seed']}"] if "training_seed" in provenance else []
        parts += [*seed, f"step {provenance['optimizer_steps']}"]
    return f"  ({', '.join(map(str, parts))})" if parts else ""


def _inspect(store: Store, options: argparse.Namespace) -> None:
    from lpc_ray.artifacts.handles import ARTIFACTS, find_digest
    from lpc_ray.artifacts.store import stored_manifest

    digest = find_digest(store, options.handle)
    print(describe(stored_manifest(store / ARTIFACTS, digest)))


def describe(manifest: "Manifest") -> str:
    """A screenful: what it is, whom it fits, where it comes from, what it cost, how it was verified."""
    who = manifest.identity
    lines = [
        ("digest", manifest.digest),
        (
            "kind",
            f"{manifest.kind}, schema {manifest.schema_version}, {manifest.num_bytes / 2**20:.1f} MiB {manifest.dtype}",
        ),
        (
            "tokens",
            f"{manifest.num_tokens}, the first {manifest.frozen_tokens} frozen; trained beside at most {manifest.k_max}",
        ),
        (
            "layout",
            f"{manifest.layout}: {who.num_layers} × {manifest.num_tokens} × {who.num_kv_heads} × {who.head_dim}",
        ),
        ("positions", manifest.position_rule),
        ("model", f"{who.model_id}" + (f" @ {who.revision}" if who.revision else "")),
        ("  config", who.config_hash),
        ("  weights", who.weights_hash),
        ("  tokenizer", who.tokenizer_hash),
        ("  template", who.chat_template_hash),
        ("  rope", f"{who.rope}, up to {who.max_positions} positions"),
    ]
    for title, recorded in (
        ("provenance", manifest.provenance),
        ("costs", manifest.costs),
        ("verification", manifest.verification),
    ):
        lines.append((title, "" if recorded else "none recorded"))
        lines += [(f"  {name}", _short(value)) for name, value in sorted(recorded.items())]
    return "\n".join(printable(f"{name:<18} {value}".rstrip()) for name, value in lines)


def _short(value) -> str:
    text = value if isinstance(value, str) else _counts(value) or json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 90 else f"{text[:87]}..."


def _verify(store: Store, options: argparse.Namespace) -> None:
    from lpc_ray.artifacts.library import check_room, load, made_for
    from lpc_ray.model.embedded import resolve_model
    from lpc_ray.model.files import text_config
    from lpc_ray.model.identity import model_identity

    identity = made_for(store, options.handle)
    model, revision = (options.model, None) if options.model else (identity.model_id, identity.revision)
    folder = resolve_model(model)
    manifest, keys, _ = load(store, options.handle, model_identity(folder, revision))
    check_room(text_config(folder, revision), manifest.num_tokens)
    whole = (
        f"{options.handle}: whole and made for {model}: digest {manifest.digest}, {list(keys.shape)} {manifest.dtype}"
    )
    print(printable(f"{whole}, all finite; config, weights, tokenizer, chat template and RoPE agree"))


def _import(store: Store, options: argparse.Namespace) -> None:
    from lpc_ray.artifacts.library import ImportRequest, add
    from lpc_ray.model.architecture import check_architecture
    from lpc_ray.model.embedded import resolve_model
    from lpc_ray.model.files import text_config
    from lpc_ray.model.identity import model_identity

    model = resolve_model(options.model)
    config = text_config(model, options.revision)
    check_architecture(config)
    request = ImportRequest(options.file, options.format, options.name, options.layout, options.align_down)
    added = add(store, request, model_identity(model, options.revision), config)
    for warning in added.warnings:
        print(f"warning: {printable(warning)}", file=sys.stderr)
    manifest, before = added.manifest, f", before → {added.previous}" if added.previous else ""
    print(f"{options.name} → {manifest.digest} ({manifest.num_tokens} tokens, {manifest.dtype}) in {store}{before}")


def _export(store: Store, options: argparse.Namespace) -> None:
    from lpc_ray.artifacts.library import export

    for name in export(store, options.handle, options.format, options.out):
        print(options.out / name)


if __name__ == "__main__":
    main()
