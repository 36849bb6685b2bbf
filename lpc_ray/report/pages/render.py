"""Reports as HTML pages: styles, plots and replies inside them, nothing loaded from anywhere."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lpc_ray.records import Case
from lpc_ray.report.ledger.columns import columns_of
from lpc_ray.report.ledger.ledger import ArmRecord, BaselineRecord
from lpc_ray.report.ledger.row import off_source_rows
from lpc_ray.report.pages.case_grid import verdict_grid
from lpc_ray.report.pages.escape import visible
from lpc_ray.report.pages.plots import convergence_plot, pareto_plot
from lpc_ray.report.pages.styles import COLOURS, MARKERS
from lpc_ray.report.statistics.recipe_ranking import RecipeScore
from lpc_ray.report.statistics.seed_spread import ended_early, seed_label
from lpc_ray.report.statistics.steps_to_quality import convergence
from lpc_ray.report.statistics.tables import RunTables
from lpc_ray.report.words.findings import Finding
from lpc_ray.report.words.wording import denominator_words, p_words, unscored_words

LIMITS = (
    "The best step is chosen by the tune cases; the held-out cases were answered only with the artifact of that step.",
    (
        "Intervals and tests take the cases as independent. P values are corrected for the number of comparisons under their "
        "heading: where nothing differs, one such heading in twenty would hold a p below 0.05."
    ),
    "Greedy decoding hides the spread over samples; a recipe's spread over seeds is given under its own heading.",
    "Trace generation seconds and teacher tokens are those of the whole trace set, in full in every arm that shares it.",
    "Seconds were measured on this run's machine, beside whatever else ran on it.",
    "Scores hold for this document and these cases.",
)
UNMEASURED = "What a prefix does to prompts that have nothing to do with its source was not measured."


def html_page(
    title: str,
    facts: Mapping[str, Any],
    arms: Sequence[ArmRecord],
    baselines: Sequence[BaselineRecord],
    cases: Sequence[Case],
    tables: RunTables,
    words: Sequence[Finding],
    recipes: Sequence[RecipeScore] = (),
    induction: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """The page of one run, UTF-8."""
    off_source = off_source_rows(tables.rows)
    is_measured = any(row.kl_drift is not None for row in off_source)
    return rendered(
        "report.html.j2",
        title=title,
        facts=facts,
        tables=tables,
        recipes=recipes,
        induction=induction,
        findings=_by_topic(words),
        convergence_svg=Markup(convergence_plot(convergence(arms), tables.rows)),
        pareto_svg=Markup(pareto_plot(tables.places, tables.rows)),
        grid=verdict_grid(arms, baselines, cases),
        off_source=off_source,
        num_colours=len(COLOURS),
        num_looks=len(COLOURS) * len(MARKERS),
        limits=LIMITS if is_measured else (*LIMITS, UNMEASURED),
    )


def rendered(template: str, **values: Any) -> bytes:
    """Every value is escaped; only the plots are markup already. Control and bidi characters, and a lone surrogate, are
    shown as escapes.
    """
    html = _environment().get_template(template).render(**values)
    return html.lstrip().encode("utf-8", "backslashreplace")


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible,
    )
    environment.globals |= {"columns_of": columns_of}
    environment.globals |= {"seed_label": seed_label, "ended_early": ended_early}
    environment.globals |= {
        "unscored_words": unscored_words,
        "p_words": p_words,
        "denominator_words": denominator_words,
    }
    environment.filters["zip"] = zip
    return environment


def _by_topic(words: Sequence[Finding]) -> dict[str, list[str]]:
    topics: dict[str, list[str]] = {}
    for finding in words:
        topics.setdefault(finding.topic, []).append(finding.text)
    return topics
