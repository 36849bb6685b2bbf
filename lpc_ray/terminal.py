"""What people see in a terminal: progress, one line per event, and errors, one line each."""

import argparse
import io
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from lpc_ray.errors import LPCError, TerminalError

_STDOUT = 1


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line, without its usage, which `--help` shows."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


INTERRUPTED = "interrupted: what is stored is whole, and a rerun goes on from it"
_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """While the block runs, a signal to end is ignored: for what takes seconds and must be whole, such as the ending itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = [(number, signal.signal(number, signal.SIG_IGN)) for number in _ENDING]
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)


@contextmanager
def held_back() -> Iterator[None]:
    """While the block runs, a signal to end waits: what starts processes must know them all before it is to end them.

    Raises: KeyboardInterrupt at the block's end, when one came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = [(number, signal.signal(number, lambda number, _: came.append(number))) for number in _ENDING]
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


@contextmanager
def exit_on_error(interrupted: str = INTERRUPTED) -> Iterator[None]:
    """End the program with 2 and one line for an error of the user's, and as Ctrl-C does on a signal to terminate.

    interrupted: the line to say then.

    What the terminal's encoding lacks is printed as escapes; a reader of the output that has had enough ends the program, and
    so does, in one line, an output that takes no more.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except LPCError as error:
        # Ray raises a worker's error as one that quotes the whole traceback, with the error itself as its cause.
        print(f"error: {printable(str(getattr(error, 'cause', error)))}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        if _is_read():
            raise
        _drop_output()
        sys.exit(128 + signal.SIGPIPE)
    except OSError:
        refusal = _refusal()
        if refusal is None:
            raise
        _drop_output()
        print(f"error: standard output: {refusal}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        sys.exit(130)


def check_output() -> None:
    """For a command that does nothing but show something. Raises: TerminalError without a standard output."""
    if sys.stdout is None:
        raise TerminalError("standard output: got none, wanted one to show this on")


def _is_read() -> bool:
    """Whether anybody still reads the standard output."""
    poll = select.poll()
    poll.register(_STDOUT, select.POLLOUT)
    return not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _refusal() -> str | None:
    """Why the standard output takes no more, such as a full disk; None where it takes the end of a line."""
    try:
        os.write(_STDOUT, b"\n")
    except OSError as error:
        return error.strerror
    return None


def _drop_output() -> None:
    """Nothing that is still to be written fails once more when the program ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)


def printable(text: str) -> str:
    """`text` on one line, with escapes for what would steer a terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class Console:
    """Progress, with the time since the start and the stage. Lines go to standard output as they happen."""

    def __init__(self):
        self._started = self._last = time.monotonic()

    def __call__(self, stage: str, text: str) -> None:
        self._last = time.monotonic()
        print(f"[{clock(self._last - self._started)}] {stage:<7} {printable(text)}", flush=True)

    @contextmanager
    def kept_alive(self, ask: Callable[[], tuple[str, str] | None], seconds: float) -> Iterator[None]:
        """While the block runs: whenever no line came for `seconds`, one that `ask` gives as stage and text, if it has any."""

        def watch() -> None:
            if time.monotonic() - self._last >= seconds and (heartbeat := ask()) is not None:
                self(*heartbeat)

        with repeated(watch, seconds / 4):
            yield


def clock(seconds: float) -> str:
    """Seconds as minutes:seconds."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes:02d}:{rest:02d}"


@contextmanager
def repeated(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """While the block runs: `action` in a thread, every `seconds`, the first time after as many."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
