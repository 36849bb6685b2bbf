"""The shape of a result file: what may stand at its top level."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lpc_ray.errors import DataError
from lpc_ray.report.ledger.row import Convention
from lpc_ray.report.results.fields import MOST_CHECKS, shown

Entry = dict[str, Any]
Count = Annotated[int, Field(ge=0, le=MOST_CHECKS)]
LISTS = ("tables", "curves", "convergence", "arms", "baselines", "results", "rows")
DERIVED = {"findings", "thresholds", "steps_to_quality", "break_even", "documents", "recipes", "induction"}


class Table(BaseModel):
    """A printed table; what else it says of itself (page, title) is for readers."""

    rows: tuple[Entry, ...]


class StatedCurveRow(BaseModel):
    """Steps to some qualities, as cells such as `12 / 19`; null where an arm never had that score."""

    arm: str
    reached: dict[str, Count | None]
    best: str
    induction: str | None = None
    initializer: str | None = None
    initializer_seed: int | None = None


class CurveTable(BaseModel):
    rows: tuple[StatedCurveRow, ...]


class Point(BaseModel):
    """A verified checkpoint of an own report."""

    arm: str
    step: Count
    passed: Count
    total: Count


class StatedRun(BaseModel):
    """What the file of a comparison states of one run beside its rows. ended: measured curve → how it ended."""

    run: Annotated[str, Field(min_length=1)]
    title: str | None = None
    facts: dict[str, Any] = {}
    ignored_keys: tuple[str, ...] = ()
    curves: tuple[CurveTable, ...] = ()
    convergence: tuple[Point, ...] = ()
    ended: dict[str, str] = {}


class ResultFile(BaseModel):
    """denominators: task → its number of checks. Keys that are not named here are kept in `model_extra`."""

    model_config = ConfigDict(extra="allow")

    run: str | None = None
    task: str | None = None
    title: str | None = None
    facts: dict[str, Any] | None = None
    denominators: dict[str, int] = {}
    placeholders_counted: Convention | None = None
    tables: tuple[Table, ...] = ()
    curves: tuple[CurveTable, ...] = ()
    convergence: tuple[Point, ...] = ()
    arms: tuple[Entry, ...] = ()
    baselines: tuple[Entry, ...] = ()
    results: tuple[Entry, ...] = ()
    rows: tuple[Entry, ...] = ()
    runs: tuple[StatedRun, ...] = ()

    @property
    def entries(self) -> list[Entry]:
        """Every result, in the order in which a report shows them."""
        baselines = [{**entry, "kind": "baseline"} for entry in self.baselines]
        tabled = [entry for table in self.tables for entry in table.rows]
        return [*baselines, *self.arms, *self.results, *self.rows, *tabled]

    @property
    def ignored(self) -> set[str]:
        return set(self.model_extra or {}) - DERIVED


def result_file(content: Any, where: str) -> ResultFile:
    """Raises: DataError for what is no result file, naming the place in it."""
    top = {"results": content} if isinstance(content, list) else content
    if not isinstance(top, dict) or not any(name in top for name in LISTS):
        raise DataError(f"{where}: got no results, wanted a list of them, or one of {', '.join(LISTS)}")
    try:
        return ResultFile.model_validate(top)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise DataError(f"{where}, {place}: got {shown(problem['input'])}: {problem['msg']}") from error
