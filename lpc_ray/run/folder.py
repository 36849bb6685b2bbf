"""Where everything of one run lies; `lpc_ray.report` names the files of its report.

artifacts/<digest>/                    handles/<handle>.json       traces/<trace set id>/    arms/<arm id>/
outcomes/<protocol>/                   baselines/<key>.json        off_source/<protocol>/<digest>.json
report.json, report.html               mlflow.db                   ray_train/, ray_tune/
"""

from dataclasses import dataclass

from lpc_ray.artifacts.handles import ARTIFACTS
from lpc_ray.report.files import REPORT_PAGE
from lpc_ray.storage import Store

_ARMS, _OUTCOMES = "arms", "outcomes"


@dataclass(frozen=True)
class RunFolder:
    """One run over its store, which is also a library: artifacts with handles (`lpc_ray.artifacts`). Picklable."""

    store: Store

    def __str__(self) -> str:
        return str(self.store)

    @property
    def artifacts(self) -> Store:
        return self.store / ARTIFACTS

    def traces(self, trace_set: str) -> Store:
        """The rows of a trace set, and what is known of how they were made."""
        return self.store / f"traces/{trace_set}"

    def arm(self, arm_id: str) -> Store:
        """An arm's checkpoints, state and ends."""
        return self.store / f"{_ARMS}/{arm_id}"

    def arm_ids(self) -> list[str]:
        """Every arm that was begun, also by other recipes."""
        return self.store.names(_ARMS)

    def outcomes(self, protocol: str) -> Store:
        """The outcomes under one protocol, a file for each answerer and split."""
        return self.store / f"{_OUTCOMES}/{protocol}"

    def protocols(self) -> list[str]:
        """Every protocol under which something was verified."""
        return self.store.names(_OUTCOMES)

    def baseline(self, key: str) -> str:
        """The file, within `store`, that names a baseline's artifact."""
        return f"baselines/{key}.json"

    def off_source(self, protocol: str, digest: str) -> str:
        """The file, within `store`, of what an artifact does off its source."""
        return f"off_source/{protocol}/{digest}.json"

    @property
    def report_page(self) -> str:
        """The report's page as the file system spells it."""
        return self.store.path(REPORT_PAGE)

    def scratch(self, name: str) -> str:
        """A folder that a framework writes for itself: a local path, or a URL where the run is remote."""
        return self.store.path(name) if self.store.is_local else f"{self.store.url}/{name}"
