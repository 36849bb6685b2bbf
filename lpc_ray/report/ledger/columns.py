"""How each figure of a row is shown, read from files and summed over tasks: declared once, and read by every table.

A new column is a field of `lpc_ray.report.ledger.figures` and an entry of `COLUMNS`; `lpc_ray.run.records` hands in what was
measured.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Table = Literal["terminal", "scores", "per_request", "once", "comparison", "arms.csv", "off_source"]


@dataclass(frozen=True, slots=True)
class Shown:
    """How a column looks in one table. form: a format, or a function of the value, which is multiplied by `factor` first.

    style: the cell's class on a page, `n` for a number. missing: what stands where the row has no value.
    """

    heading: str
    form: str | Callable[[Any], str] = "{:,}"
    factor: float | None = None
    style: str = "n"
    missing: str = "–"

    def text(self, value: Any) -> str | None:
        """None for a value that is missing."""
        if value is None:
            return None
        scaled = value if self.factor is None else self.factor * value
        return self.form.format(scaled) if isinstance(self.form, str) else self.form(scaled)


@dataclass(frozen=True, slots=True)
class Column:
    """`name`: the field or property of a Row.

    shown: table → its look. over_tasks: how an arm's tasks give one figure; None: they give none. spellings: what foreign
    result files call it as well. bounds: what a file's value has to be, in words, and from where to where.
    """

    name: str
    shown: Mapping[Table, Shown] = field(default_factory=dict)
    over_tasks: Literal["sum", "mean"] | None = None
    spellings: tuple[str, ...] = ()
    bounds: tuple[str, float, float] | None = None


def _dropped(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "none"


def _gate(verdict: str) -> str:
    return verdict if verdict == "passed" else f"refused: {verdict}"


ONE, TWO, FOUR = "{:,.1f}", "{:,.2f}", "{:.4f}"
STEPS, PERCENT, POINTS = "{:,}", "{:.1f} %", "{:+.1f} points"
COLUMNS = (
    Column(
        "best_step",
        {"terminal": Shown("step", "{}"), "scores": Shown("best step"), "comparison": Shown("step", STEPS)},
        spellings=("step", "optimizer_steps"),
    ),
    Column("tune", {"terminal": Shown("tune", "{}"), "scores": Shown("tune", "{}")}),
    Column(
        "num_tokens",
        {"scores": Shown("P")},
        over_tasks="mean",
        spellings=("prefix_tokens", "num_prefix_tokens", "virtual_tokens"),
    ),
    Column(
        "prompt_tokens",
        {"per_request": Shown("prompt tokens", ONE)},
        over_tasks="mean",
        spellings=("input_tokens",),
    ),
    Column(
        "generated_tokens",
        {"per_request": Shown("generated tokens", ONE)},
        over_tasks="mean",
        spellings=("completion_tokens", "output_tokens"),
    ),
    Column(
        "request_tokens",
        {
            "terminal": Shown("tokens", "{:,.0f}"),
            "per_request": Shown("request tokens", ONE),
            "comparison": Shown("request tokens", ONE),
            "arms.csv": Shown("request_tokens"),
        },
        over_tasks="mean",
        spellings=("mean_request_tokens", "total_tokens"),
    ),
    Column("request_seconds", over_tasks="mean", spellings=("mean_request_seconds",)),
    Column(
        "prefix_tokens",
        {
            "per_request": Shown("prefix tokens"),
            "comparison": Shown("prefix tokens"),
            "arms.csv": Shown("prefix_tokens"),
        },
    ),
    Column(
        "prefix_bytes",
        {
            "per_request": Shown("prefix MB", TWO, factor=1e-6),
            "comparison": Shown("prefix bytes"),
            "arms.csv": Shown("prefix_bytes"),
        },
        over_tasks="sum",
        spellings=("artifact_bytes",),
    ),
    Column(
        "trace_generation_seconds",
        {"once": Shown("traces, s", ONE)},
        over_tasks="sum",
        spellings=("induction_seconds", "trace_seconds"),
    ),
    Column(
        "teacher_pass_seconds",
        {"once": Shown("teacher passes, s", ONE)},
        over_tasks="sum",
        spellings=("teacher_seconds",),
    ),
    Column("teacher_tokens", {"once": Shown("teacher tokens")}, over_tasks="sum"),
    Column("trace_rows", {"once": Shown("rows")}),
    Column("dropped_rows", {"once": Shown("dropped", _dropped, style="", missing="none")}),
    Column("target_tokens_seen", {"once": Shown("targets seen")}),
    Column(
        "training_seconds",
        {"once": Shown("training, s", ONE)},
        over_tasks="sum",
        spellings=("train_seconds",),
    ),
    Column("offline_seconds", {"comparison": Shown("offline s", ONE), "arms.csv": Shown("offline_seconds")}),
    Column(
        "expected_requests",
        {"comparison": Shown("expected requests"), "arms.csv": Shown("expected_requests")},
        over_tasks="sum",
        spellings=("reuse_count",),
    ),
    Column(
        "observed_requests",
        {"comparison": Shown("observed requests"), "arms.csv": Shown("observed_requests")},
        over_tasks="sum",
    ),
    Column(
        "kl_drift",
        {"off_source": Shown("KL drift", FOUR)},
        bounds=("a number of at least 0 and at most 1e15", 0, 1e15),
    ),
    Column(
        "accuracy_change",
        {"off_source": Shown("unrelated answered", POINTS, factor=100)},
        bounds=("a number from -1 to 1", -1, 1),
    ),
    Column("accuracy_bare", {"off_source": Shown("bare model", PERCENT, factor=100)}),
    Column("abstention", {"off_source": Shown("unanswerable declined", PERCENT, factor=100)}),
    Column("abstention_bare", {"off_source": Shown("bare model", PERCENT, factor=100)}),
    Column("gate", {"off_source": Shown("gate", _gate, style="sentence", missing="no gate")}),
)


@dataclass(frozen=True, slots=True)
class Cells:
    """A column of one table."""

    name: str
    look: Shown

    def text(self, row: Any) -> str | None:
        return self.look.text(getattr(row, self.name))


def columns_of(table: Table, rows: Iterable[Any] | None = None) -> list[Cells]:
    """The columns of a table, in their order. rows: leave out those of which no row has a value."""
    known = [Cells(column.name, column.shown[table]) for column in COLUMNS if table in column.shown]
    if rows is None:
        return known
    present = list(rows)
    return [cells for cells in known if any(getattr(row, cells.name) is not None for row in present)]


def over_tasks(how: Literal["sum", "mean"]) -> tuple[str, ...]:
    """The fields whose figure over several tasks is their sum or mean."""
    return tuple(column.name for column in COLUMNS if column.over_tasks == how)
