"""Where a program keeps what it may need again: lpc_ray's own cache, and a home for libraries that write there unasked.

Containers run programs as users without a home, with `/` as one, or with one that is read-only.
"""

import getpass
import os
import stat
import sys
import tempfile
from pathlib import Path

from lpc_ray.errors import ConfigError, StorageError

_READ_FROM_HOME = {"LPC_CACHE": "lpc_ray", "HF_HOME": "huggingface"}  # variable → folder of the cache
_MOST_SOCKET_BYTES = 107
_RAY_SOCKET = "/ray/session_2026-12-01_08-55-28_123456_1234567/sockets/plasma_store"
_VLLM_SOCKET = "/12345678-1234-1234-1234-123456789012"
_OF_HOME = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


def cache() -> Path:
    """`$LPC_CACHE`, by default `$XDG_CACHE_HOME/lpc_ray` or `~/.cache/lpc_ray`. It need not be there.

    Raises: StorageError for a path that is not UTF-8, which no tokenizer could be read from.
    """
    own = os.environ.get("LPC_CACHE")
    folder = Path(os.path.abspath(os.path.expanduser(own))) if own else _caches() / "lpc_ray"
    if any("\udc80" <= one <= "\udcff" for one in str(folder)):
        raise StorageError(f"cache {folder}: got a path that is not UTF-8, wanted LPC_CACHE to name one that is")
    return folder


def make_in_cache(folder: Path) -> None:
    """`folder` of the cache, with the folders above it.

    Raises: StorageError that names LPC_CACHE, also where the cache would lie in a home that is only a substitute: what is
    kept there is large and meant to stay.
    """
    if not os.environ.get("LPC_CACHE") and _home() == _substitute():
        raise StorageError("LPC_CACHE: got none, and no home that can be written, wanted a folder that can be")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"cannot write {folder}: {reason}; wanted LPC_CACHE to name a folder that can be") from error


def own_home() -> Path:
    """The user's home folder. Raises: StorageError where there is none but a substitute."""
    home = _home()
    if home is None or home == _substitute():
        raise StorageError("got no home folder that can be written, wanted HOME to name one")
    return home


def settle() -> str | None:
    """Give this process and its children what libraries take for granted: a temporary folder, a home and a user's name.

    Where the home cannot be written, HOME names a private folder in the temporary one from now on; model caches in the old
    home are read all the same. To be called before anything heavy is imported. Returns the line to say of it, if any.
    Raises: ConfigError for a TMPDIR that cannot be written, for a working directory that is gone, in which libraries fail in
    words of their own, and where Python reads names and arguments as anything but UTF-8.
    """
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        raise ConfigError(f"locale: Python reads names and arguments as {encoding}, wanted UTF-8: set PYTHONUTF8=1")
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(f"working directory: {error.strerror}, wanted one that is there: cd to another") from error
    _check_temporary()
    try:
        getpass.getuser()
    except (KeyError, OSError):  # a number that /etc/passwd does not know, as containers have them
        os.environ["USER"] = f"uid{os.geteuid()}"
    home, named = _home(), os.environ.get("XDG_CACHE_HOME")
    if home is None or not (home.is_dir() and _is_writable(home)):
        _keep_reading(None if home is None else _caches())
        substitute = _made_private(_substitute())
        os.environ["HOME"] = str(substitute)
        for name in _OF_HOME:
            os.environ.pop(name, None)
        return f"home {home or '(none)'}: cannot be written, so libraries keep their files in {substitute}"
    if named and not _is_writable(Path(named)):
        _keep_reading(Path(named))
        del os.environ["XDG_CACHE_HOME"]
        return f"XDG_CACHE_HOME {named}: cannot be written, so libraries keep their files in {home}/.cache"
    return None


def check_sockets() -> None:
    """Raises: ConfigError for a temporary folder whose name is too long for the sockets that Ray and vLLM make below it."""
    ray = os.environ.get("RAY_TMPDIR")
    for variable, folder, below in (
        ("RAY_TMPDIR" if ray else "TMPDIR", ray or tempfile.gettempdir(), _RAY_SOCKET),
        ("TMPDIR", tempfile.gettempdir(), _VLLM_SOCKET),
    ):
        most, got = _MOST_SOCKET_BYTES - len(below), len(os.fsencode(os.path.abspath(folder)))
        if got > most:
            raise ConfigError(
                f"{variable}: got {folder}, {got} bytes long, wanted at most {most}: sockets below it have names of at most "
                f"{_MOST_SOCKET_BYTES} bytes"
            )


def _check_temporary() -> None:
    named = os.environ.get("TMPDIR")
    if named and not (os.path.isdir(named) and _is_writable(Path(named))):
        raise ConfigError(f"TMPDIR: got {named}, wanted a folder that can be written")
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ConfigError("TMPDIR: got none, and no usual folder can be written; wanted one that can") from error


def _home() -> Path | None:
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and a user whom the system does not know
        return None
    return home if home.is_absolute() else None


def _caches() -> Path:
    """Where caches lie by custom; a relative XDG_CACHE_HOME is no name, as its standard has it."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else (_home() or _substitute()) / ".cache"


def _keep_reading(caches: Path | None) -> None:
    """Name the caches in a folder that will no longer be looked into."""
    for variable, name in _READ_FROM_HOME.items():
        if caches is not None and not os.environ.get(variable) and _may(caches / name, os.R_OK):
            os.environ[variable] = str(caches / name)


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in `folder`, or in what is there of it."""
    there = next(one for one in (folder, *folder.absolute().parents) if os.path.lexists(one))
    return _may(there, os.W_OK | os.X_OK)


def _may(path: Path, mode: int) -> bool:
    """As the user that we act as, with all its capabilities."""
    return os.access(path, mode, effective_ids=True)


def _substitute() -> Path:
    return Path(tempfile.gettempdir()) / f"lpc_ray-home-{os.geteuid()}"


def _made_private(folder: Path) -> Path:
    """`folder`, made for us alone. Raises: ConfigError where somebody else has it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"HOME: got none, and {folder} cannot be made: {error.strerror or error}") from error
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigError(f"HOME: got none, and {folder} is not ours alone; wanted HOME to name a folder")
    return folder
