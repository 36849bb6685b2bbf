"""The artifacts that running requests may need again, kept open: a file that has left the host tier is still there for them."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from safetensors import safe_open

from lpc_ray.artifacts.store import TENSOR_FILE


class OpenPrefixes:
    """Folder → its tensors, mapped once while any request holds it."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[ExitStack, Any]] = {}
        self._holders: dict[str, set[str]] = {}  # folder → requests
        self._held: dict[str, list[str]] = {}  # request → folders

    def hold(self, request_id: str, folders: Iterable[str]) -> None:
        """Keep `folders` for the request until it is released. Raises: OSError or SafetensorError for one that is unfit."""
        held = self._held.setdefault(request_id, [])
        for folder in folders:
            if folder not in self._open:
                stack = ExitStack()
                tensors = stack.enter_context(safe_open(f"{folder}/{TENSOR_FILE}", framework="pt"))
                self._open[folder] = stack, tensors
            self._holders.setdefault(folder, set()).add(request_id)
            held.append(folder)

    def tensors(self, folder: str) -> Any:
        """The open file of a folder that some request holds."""
        return self._open[folder][1]

    def release(self, request_ids: Iterable[str]) -> None:
        """These requests have ended, whether or not they held anything."""
        for request_id in request_ids:
            for folder in self._held.pop(request_id, ()):
                holders = self._holders.get(folder, set())
                holders.discard(request_id)
                if not holders and folder in self._open:
                    self._holders.pop(folder, None)
                    self._open.pop(folder)[0].close()
