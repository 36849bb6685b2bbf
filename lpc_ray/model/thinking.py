"""What a reasoning model says, apart from what it thinks before it."""

import re

from lpc_ray.records import Reply

_NAMES = "(?:think|thinking|thought|reasoning|seed:think)"
OPENS = re.compile(rf"<{_NAMES}>|\[THINK\]|◁think▷", re.IGNORECASE)
CLOSES = re.compile(rf"</{_NAMES}>|\[/THINK\]|◁/think▷", re.IGNORECASE)
# At a prompt's end: a block that is open, or one that is closed at once.
OPENING = re.compile(rf"(?P<tag>{OPENS.pattern})\s*(?P<closed>(?:{CLOSES.pattern})\s*)?\Z", re.IGNORECASE)
_OPENED = re.compile(rf"(?:{OPENS.pattern})\s*\Z", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})", re.MULTILINE)
_QUOTES = frozenset("\"'`“”‘’")


def said(reply: Reply) -> str:
    """The text of `reply` without thinking; "" when it was cut before its answer."""
    return spoken(reply.text, reply.is_thinking)


def spoken(reply: str, is_thinking: bool = False) -> str:
    """`reply` without its blocks of thinking, such as <think>…</think>.

    is_thinking: the prompt opened a block, so the reply begins inside. So does one whose first tag is a closing one.
    A block that never ends takes the rest of the reply: it was cut before its answer. A tag in quotes or in a block of code
    is a mention, except at the start of a reply and inside a block of thinking.
    """
    said, rest = [], reply
    closed, opened = _first_closing(reply), _opening(reply)
    is_thinking = is_thinking or (closed is not None and (opened is None or closed.start() < opened.start()))
    while True:
        if is_thinking:
            closed = CLOSES.search(rest)
            rest = rest[closed.end() :] if closed else ""
        opened = _opening(rest)
        if opened is None:
            return "".join([*said, rest])
        said.append(rest[: opened.start()])
        rest, is_thinking = rest[opened.end() :], True


def opens_thinking(prompt: str) -> bool:
    """Whether a prompt's end opens a block of thinking, which its reply is to close."""
    return _OPENED.search(prompt) is not None


def _opening(text: str) -> re.Match[str] | None:
    for tag in OPENS.finditer(text):
        before = text[: tag.start()]
        if not before.strip() or not (before[-1] in _QUOTES or _is_in_code(before)):
            return tag
    return None


def _first_closing(text: str) -> re.Match[str] | None:
    """A program names a tag within a line; thinking that ends inside a block of code ends with a tag on a line of its own."""
    for tag in CLOSES.finditer(text):
        before, line = text[: tag.start()], text[text.rfind("\n", 0, tag.start()) + 1 : tag.start()]
        is_quoted = text[tag.end() : tag.end() + 1] in _QUOTES and not _QUOTES.isdisjoint(line)
        if not is_quoted and (not line.strip() or not _is_in_code(before)):
            return tag
    return None


def _is_in_code(before: str) -> bool:
    """Whether a block of code is open at the end of `before`."""
    return len(_FENCE.findall(before)) % 2 == 1


def closing_of(tag: str) -> str:
    """The tag that closes the block which `tag` opens."""
    return f"{tag[0]}/{tag[1:]}"
