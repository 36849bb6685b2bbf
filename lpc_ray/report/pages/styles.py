"""Colours, markers and dashes that distinguish the lines of a plot on white and on black."""

from collections.abc import Sequence
from dataclasses import dataclass

from lpc_ray.report.ledger.row import Row

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


def recipe_of(row: Row) -> tuple:
    """What rows that differ in their seeds alone have in common; a row without a recipe is one of its own."""
    recipe = (row.induction, row.objective, row.initializer)
    return (*(recipe if any(recipe) else (row.name,)), row.num_tokens)


def styles(rows: Sequence[Row]) -> dict[str, Style]:
    """Row name → look: a colour and a marker per recipe, which no other has until all pairs are used; seeds look alike.

    Colours come round after eight recipes. The first eight differ in their markers too.
    """
    looks: dict[tuple, Style] = {}
    for row in rows:
        number = len(looks)
        turn = number // len(COLOURS)
        look = Style(
            colour=COLOURS[number % len(COLOURS)],
            marker=MARKERS[(number + turn) % len(MARKERS)],
            dashes=DASHES[turn % len(DASHES)],
        )
        looks.setdefault(recipe_of(row), look)
    return {row.name: looks[recipe_of(row)] for row in rows}


def legend_names(rows: Sequence[Row]) -> dict[str, str]:
    """Row name → what its recipe is called in a legend: the name of its only row, else the recipe and its seeds."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(recipe_of(row), []).append(row)
    found = {}
    for group in groups.values():
        first = group[0]
        size = () if first.num_tokens is None else (f"p{first.num_tokens}",)
        parts = [part for part in (first.induction, first.objective, first.initializer, *size) if part]
        name = first.name if len(group) == 1 else f"{'-'.join(parts)}, {len(group)} seeds"
        found |= {row.name: name for row in group}
    return found
