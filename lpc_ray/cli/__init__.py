"""The command lines. What they import takes a second or more, in which Ctrl-C is one line too."""

import sys
from types import TracebackType

from lpc_ray.terminal import INTERRUPTED


def _in_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print(INTERRUPTED, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _in_one_line
