"""Colours, markers and dashes that tell the lines of a plot apart on white and on black."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lpc_ray.analysis.row import Row

COLOURS = ("#2f7ed8", "#d9541e", "#2e9e4f", "#b0569b", "#a8841a", "#138f8f", "#e0457b", "#7a6fd0")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">")
BASELINE_MARKERS = ("x", "+", "*", "h", "1", "2")
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))


@dataclass(frozen=True, slots=True)
class Style:
    """One line's look in matplotlib's terms."""

    colour: str
    marker: str
    dashes: str | tuple


def styles(rows: Sequence[Row]) -> dict[str, Style]:
    """Row name → look: one colour per recipe (they come round after eight), seeds apart by marker and dashes.

    The first seeds of two recipes differ in their markers too, so that no pair is told apart by colour alone.
    """
    colours: dict[tuple, str] = {}
    drawn: Counter[str] = Counter()
    found = {}
    for row in rows:
        recipe = (row.induction, row.objective, row.initializer, row.num_tokens)
        colour = colours.setdefault(recipe, COLOURS[len(colours) % len(COLOURS)])
        turn = drawn[colour]
        drawn[colour] += 1
        marker = MARKERS[(COLOURS.index(colour) + turn) % len(MARKERS)]
        found[row.name] = Style(colour, marker, DASHES[turn % len(DASHES)])
    return found
