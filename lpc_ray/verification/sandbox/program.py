"""The program in a reply: its last fenced block of Python."""

import re

_FENCE = re.compile(r"(`{3,}|~{3,})(.*)")
_LEAD = re.compile(r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?")
_PYTHON = {"python", "python3", "py"}


def program_in(reply: str) -> str | None:
    """The last fenced block of a reply whose info string begins with python, python3 or py; None when there is none.

    Fences are Markdown's (CommonMark 4.5), at any indentation; a block that the reply's end cuts is taken as it is. What
    UTF-8 cannot hold (a lone surrogate) becomes a question mark.
    """
    text = reply.replace("\r\n", "\n").replace("\r", "\n")
    opening, margin, block = None, "", (0, 0, 0)
    for fence in _FENCE.finditer(text):
        mark, info = fence.groups()
        if opening is None:
            lead = _lead(text, fence)
            if _LEAD.fullmatch(lead) and (mark[0] == "~" or "`" not in info):
                opening, margin = fence, lead.expandtabs(4)
        elif not info.strip() and mark.startswith(opening[1]) and _may_close(_lead(text, fence), margin):
            block = (opening.end() + 1, fence.start(), len(margin)) if _is_python(opening) else block
            opening = None
    if opening is not None and _is_python(opening):
        block = (opening.end() + 1, len(text), len(margin))
    return _inside(text, *block)


def _lead(text: str, fence: re.Match[str]) -> str:
    """What stands before a fence in its line."""
    return text[text.rfind("\n", 0, fence.start()) + 1 : fence.start()]


def _may_close(lead: str, margin: str) -> bool:
    """A closing fence stands at most three columns further in than the opening one."""
    return not lead or (lead.isspace() and len(lead.expandtabs(4)) <= len(margin) + 3)


def _is_python(opening: re.Match[str]) -> bool:
    return (opening[2].split() or [""])[0].casefold() in _PYTHON


def _inside(text: str, start: int, end: int, margin: int) -> str | None:
    """The lines from start to end, indented by `margin` columns less; None when they are blank."""
    inside = text[start:end].rstrip()
    inside = re.sub(rf"^[ \t]{{1,{margin}}}", "", inside, flags=re.MULTILINE) if margin else inside
    return inside.encode("utf-8", "replace").decode("utf-8") or None
