"""YAML between two lines of --- at the head of a Markdown file, as skills and tasks have it."""

import re
from typing import Any

import yaml

from lpc_ray.errors import DataError

_OPENS = re.compile(r"---[ \t]*\n")
_WHOLE = re.compile(r"---[ \t]*\n(?P<head>(?:.*\n)??)---[ \t]*(?:\n(?P<body>.*))?", re.DOTALL)


def parted(text: str, where: str) -> tuple[dict[str, Any] | None, str]:
    """The front matter's fields, None where `text` has none, and what follows it.

    Raises: DataError that starts with `where`, for front matter that does not end or is no YAML mapping.
    """
    if _OPENS.match(text) is None:
        return None, text
    parts = _WHOLE.fullmatch(text)
    if parts is None:
        raise DataError(f"{where}: got front matter without an end, wanted a second line of ---")
    try:
        fields = yaml.safe_load(parts["head"])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{where}: front matter is not YAML: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(fields, dict):
        raise DataError(f"{where}: got front matter that is {type(fields).__name__}, wanted a mapping of fields")
    return fields, (parts["body"] or "").removeprefix("\n")
