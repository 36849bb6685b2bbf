"""What a run remembers of each arm: its checkpoints, the state to resume from, and how it ended."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from lpc_ray.errors import StorageError
from lpc_ray.storage import Store

if TYPE_CHECKING:
    import torch

_STEP, _STATE, _FAILURE = "step-", "state.safetensors", "failure.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A published step: `digest` names its artifact; `loss` is the mean per target of the last step before it.

    training_seconds, teacher_pass_seconds: since step 0, apart from each other; None: not measured.
    """

    step: int
    digest: str
    loss: float | None
    grad_norm: float | None
    targets_seen: int
    tokens_seen: int
    training_seconds: float
    teacher_pass_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ArmFailure:
    """What ended an arm's training before its time, at which step, and why, in one line.

    A diverged arm would diverge again. The others may do better on other machines, and a rerun tries them again.
    """

    status: Literal["diverged", "out of memory", "failed"]
    step: int
    why: str

    @property
    def is_final(self) -> bool:
        return self.status == "diverged"


class ArmStore:
    """An arm's folder in a run (`RunFolder.arm`). Only its tensors load torch, so that a dry run can look into it."""

    def __init__(self, folder: Store):
        self.folder = folder

    def checkpoints(self) -> list[Checkpoint]:
        """All of them, steps ascending."""
        return [self.folder.read_record(name, Checkpoint) for name in self._step_names()]

    def steps(self) -> list[int]:
        """The steps of the checkpoints, ascending, by the names of their files."""
        return [int(name.removeprefix(_STEP).removesuffix(".json")) for name in self._step_names()]

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.folder.write_json(f"{_STEP}{checkpoint.step:08d}.json", asdict(checkpoint))

    def save_state(self, tensors: "dict[str, torch.Tensor]", progress: dict[str, float]) -> None:
        """The prefix, its Adam moments and the counters, in one file that is whole or absent."""
        import torch
        from safetensors.torch import save

        counters = {f"progress.{name}": torch.tensor(value, dtype=torch.float64) for name, value in progress.items()}
        self.folder.write_bytes(_STATE, save({**tensors, **counters}))

    def load_state(self) -> "tuple[dict[str, torch.Tensor], dict[str, float]] | None":
        """What `save_state` wrote last; None before."""
        from safetensors.torch import load

        if not self.folder.exists(_STATE):
            return None
        tensors = load(self.folder.read_bytes(_STATE))
        counters = {name: tensors.pop(name).item() for name in list(tensors) if name.startswith("progress.")}
        return tensors, {name.removeprefix("progress."): value for name, value in counters.items()}

    def failure(self) -> ArmFailure | None:
        """How the arm's training failed when it was last tried."""
        return self.folder.read_record(_FAILURE, ArmFailure) if self.folder.exists(_FAILURE) else None

    def set_failure(self, failure: ArmFailure | None) -> None:
        """None: it is tried again."""
        if failure is not None:
            self.folder.write_json(_FAILURE, asdict(failure))
        else:
            self.folder.remove(_FAILURE)

    def has_ended(self, protocol: str) -> bool:
        return self.folder.exists(_end_name(protocol))

    def end(self, protocol: str) -> dict | None:
        """How the arm ended under a verification protocol: status (finished, stopped, diverged), step. None: not yet."""
        path = _end_name(protocol)
        if not self.has_ended(protocol):
            return None
        end = self.folder.read_json(path)
        if not isinstance(end, dict) or not {"status", "step"} <= set(end):
            raise StorageError(f"{self.folder.path(path)}: got no status and step of an arm's end")
        return end

    def set_end(self, protocol: str, status: str, step: int) -> None:
        if self.end(protocol) is None:
            self.folder.write_json(_end_name(protocol), {"status": status, "step": step})

    def _step_names(self) -> list[str]:
        return [name for name in self.folder.names() if name.startswith(_STEP)]


def _end_name(protocol: str) -> str:
    return f"end-{protocol}.json"
