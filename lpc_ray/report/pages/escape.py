"""A user's text as a page, a plot or a terminal shows it: nothing in it may change the order or the look of the rest."""

import re

from markupsafe import Markup

LABEL_WIDTH = 60
# Control characters but tab, LF and CR, the marks, embeddings, overrides and isolates of the bidirectional algorithm, and
# lone surrogates, which no encoding has.
HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(value):
    """Text with its control and bidi characters and lone surrogates as escapes (`\\u202e`); markup and no text as they are."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return HIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", value)


def label(name: str) -> str:
    """A name for a plot, on one line, its middle left out where it is long."""
    text = " ".join(visible(name).split())
    if len(text) <= LABEL_WIDTH:
        return text
    half = (LABEL_WIDTH - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
