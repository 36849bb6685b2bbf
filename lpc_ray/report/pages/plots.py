"""The two plots: verified score by optimizer step, and score against what a request costs."""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator, PercentFormatter

from lpc_ray.report.ledger.row import Row
from lpc_ray.report.pages.escape import label
from lpc_ray.report.pages.styles import BASELINE_MARKERS, legend_names, styles
from lpc_ray.report.pages.svg import AXES_WIDTH, INK, drawing, svg
from lpc_ray.report.statistics.pareto import ParetoRow
from lpc_ray.report.statistics.steps_to_quality import ConvergenceRow

LABEL_GAP = 0.052
TICK_INCHES = 0.27
LOG_RATIO = 4
PARETO_TITLE = "Held-out score against tokens per request"
PREFIX_WORDS = {
    "no": " (prefix not counted)",
    "yes": " (prefix counted)",
    "unknown": " (whether the prefix is counted is unknown)",
}


def convergence_plot(points: Sequence[ConvergenceRow], rows: Sequence[Row]) -> str:
    """Verified tune score by optimizer step: a line per arm, a dashed level per baseline. Returns an <svg> element."""
    arms = [row for row in rows if row.kind == "arm"]
    look, names = styles(arms), legend_names(arms)
    with drawing("convergence", len(set(names.values())), "Verified score by optimizer step") as (figure, axes):
        legend: dict[str, Artist] = {}
        for name, style in look.items():
            known = [(point.step, point.score) for point in points if point.arm == name and point.score is not None]
            (line,) = axes.plot(
                *(zip(*known, strict=True) if known else ([], [])),
                color=style.colour,
                marker=style.marker,
                linestyle=style.dashes,
                linewidth=1.7,
                clip_on=False,
                zorder=3,
            )
            legend.setdefault(names[name], line)
        _score_axis(axes, "verified score on the tune cases")
        _step_axis(axes, sorted({point.step for point in points}))
        _levels(axes, [row for row in rows if row.kind == "baseline"])
        return svg(figure, [(label(name), line) for name, line in legend.items()], "Verified score by optimizer step")


def pareto_plot(
    points: Sequence[ParetoRow], rows: Sequence[Row], salt: str = "pareto", title: str = PARETO_TITLE
) -> str:
    """Held-out score with its 95 % interval against tokens per request, and the best score up to each cost: an <svg> element.

    salt: keeps the ids of several plots on one page apart.
    """
    arms = [row for row in rows if row.kind == "arm"]
    look, names = styles(arms), legend_names(arms)
    intervals = {row.name: (row.score_low, row.score_high) for row in rows}
    known = [
        (point, point.request_tokens, point.score)
        for point in points
        if point.score is not None and point.request_tokens is not None
    ]
    with drawing(salt, len({names.get(point.name, point.name) for point, _, _ in known}), title) as (figure, axes):
        legend: dict[str, tuple[str, Artist]] = {}
        baselines = 0
        for point, cost, score in known:
            style = look.get(point.name)
            marker = style.marker if style else BASELINE_MARKERS[baselines % len(BASELINE_MARKERS)]
            baselines += style is None
            colour = style.colour if style else INK
            low, high = intervals[point.name]
            if low is not None and high is not None:
                axes.vlines(cost, low, high, color=colour, alpha=0.45, linewidth=1.2, zorder=2)
            (mark,) = axes.plot(
                [cost],
                [score],
                color=colour,
                marker=marker,
                linestyle="none",
                markersize=9,
                markerfacecolor="none",
                markeredgewidth=1.8,
                clip_on=False,
                zorder=3,
            )
            name = names.get(point.name, point.name)
            legend.setdefault(name, (f"{label(name)} ({point.prefix_tokens or 'no'} prefix tokens)", mark))
        _score_axis(axes, "verified score")
        conventions = {point.placeholders_counted for point, _, _ in known if point.prefix_tokens != 0}
        counted = PREFIX_WORDS[conventions.pop()] if len(conventions) == 1 else ""
        _cost_axis(axes, [(cost, score) for _, cost, score in known], counted)
        return svg(figure, list(legend.values()), "Held-out score against tokens per request")


def _score_axis(axes: Axes, heading: str) -> None:
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    axes.set_ylabel(heading)


def _step_axis(axes: Axes, steps: Sequence[int]) -> None:
    """Linear, a tick at every verified step; where their numbers would touch, the first and the last step keep theirs."""
    last = max(steps, default=0)
    axes.set_xlim(0, max(last, 1) * 1.04)
    gap = TICK_INCHES / AXES_WIDTH * max(last, 1) * 1.04
    numbered: list[int] = []
    for step in [*steps[:1], *reversed(steps[1:])]:
        if all(abs(step - other) >= gap for other in numbered):
            numbered.append(step)
    axes.xaxis.set_major_locator(FixedLocator(numbered))
    axes.xaxis.set_minor_locator(FixedLocator(list(steps)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:.0f}"))
    axes.set_xlabel("optimizer step")


def _levels(axes: Axes, baselines: Sequence[Row]) -> None:
    """Dashed lines with their labels in the right margin, moved up where they would overlap."""
    free = -LABEL_GAP
    levels = [
        (row.tune_passed / row.tune_total, row) for row in baselines if row.tune_total and row.tune_passed is not None
    ]
    for level, row in sorted(levels, key=lambda item: item[0]):
        axes.axhline(level, color=INK, linestyle=(0, (6, 4)), linewidth=1, alpha=0.55, zorder=2)
        free = max(level, free + LABEL_GAP)
        text = f"{label(row.name)} {row.tune_passed}/{row.tune_total}"
        axes.text(1.012, free, text, transform=axes.get_yaxis_transform(), va="center", fontsize=9)


def _cost_axis(axes: Axes, points: Sequence[tuple[float, float]], placeholders: str) -> None:
    """points: (tokens per request, score). Logarithmic where costs lie far apart; draws the best score up to each."""
    costs = [cost for cost, _ in points]
    if costs and max(costs) > LOG_RATIO * min(costs) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: f"{tokens:,.0f}"))
    axes.margins(x=0.08)
    axes.set_xlabel(f"prompt + generated tokens per request{placeholders}")
    best: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or score > best[-1][1]:
            best.append((cost, score))
    if best:
        edge = axes.get_xlim()[1]
        line = [*best, (edge, best[-1][1])]
        axes.step(*zip(*line, strict=True), where="post", color=INK, alpha=0.5, linewidth=1.2)
        axes.set_xlim(right=edge)
