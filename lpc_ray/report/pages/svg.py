"""One SVG figure that takes its text colour from the page and names no address.

matplotlib draws text and axes in `INK`, which becomes `currentColor`: one file reads on a light and on a dark page.
Text stays text, in the reader's own font, so that any script can be shown.
"""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lpc_ray.report.pages.escape import label

INK = "#010203"
SETTINGS: Any = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
    "svg.fonttype": "none",
    "text.parse_math": False,
}
WIDTH, LEFT, AXES_WIDTH, AXES_HEIGHT, TOP, TICKS, LEGEND_ROW = 9.2, 0.75, 6.3, 3.9, 0.4, 0.6, 0.215  # inches
LEGEND_COLUMNS = 2
NO_METADATA = ("Creator", "Date", "Format", "Type")


@contextmanager
def drawing(salt: str, num_legend_entries: int, title: str) -> Iterator[tuple[Figure, Axes]]:
    """A figure under `title`, with a margin at the right for labels and room below for a legend of that many entries.

    matplotlib's settings hold inside the block. `salt` keeps element ids stable, and apart from other figures' ids.
    """
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": salt}):
        below = TICKS + LEGEND_ROW * -(-num_legend_entries // LEGEND_COLUMNS)
        height = TOP + AXES_HEIGHT + below
        figure = Figure(figsize=(WIDTH, height))
        axes = figure.add_axes((LEFT / WIDTH, below / height, AXES_WIDTH / WIDTH, AXES_HEIGHT / height))
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_title(label(title), loc="left", fontsize=11, fontweight="bold", y=1.0)
        axes.tick_params(length=3)
        yield figure, axes


def svg(figure: Figure, legend: Sequence[tuple[str, Artist]], description: str) -> str:
    """`figure` as one <svg> element, with `legend` (name, artist) below the axes; `description` is read aloud."""
    if legend:
        figure.legend(
            [artist for _, artist in legend],
            [f" {name}" for name, _ in legend],  # matplotlib leaves out a label that starts with _
            loc="lower left",
            bbox_to_anchor=(LEFT / WIDTH - 0.01, 0.0),
            ncols=LEGEND_COLUMNS,
            frameon=False,
            handlelength=3.2,
            fontsize=9.5,
            borderaxespad=0.0,
            labelspacing=0.45,
        )
    sink = io.StringIO()
    with warnings.catch_warnings():  # the reader's font draws the text; matplotlib only measures it with its own
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(sink, format="svg", transparent=True, metadata=dict.fromkeys(NO_METADATA))
    drawn = sink.getvalue()
    drawn = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    drawn = drawn.replace("xlink:href", "href")
    drawn = re.sub(r'<g id="[^"]*"', "<g", drawn).replace(INK, "currentColor")
    size = re.search(r'viewBox="[^"]*"', drawn)
    opening = f'<svg role="img" aria-label="{description}" {size.group() if size else ""}>'
    return opening + drawn[drawn.index(">") + 1 :]
