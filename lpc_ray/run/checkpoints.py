"""What a run remembers of each arm: its checkpoints, the state to resume from, and how it ended."""

from dataclasses import asdict, dataclass

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from lpc_ray.errors import StorageError
from lpc_ray.storage import Store


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A published step: `digest` names its artifact; `loss` is the mean per target of the last step before it."""

    step: int
    digest: str
    loss: float | None
    grad_norm: float | None
    targets_seen: int
    tokens_seen: int
    training_seconds: float


class ArmStore:
    """The folder `arms/<arm id>` of a run."""

    def __init__(self, run: Store, arm_id: str):
        self.run = run
        self.folder = f"arms/{arm_id}"

    def checkpoints(self) -> list[Checkpoint]:
        names = [name for name in self.run.names(self.folder) if name.startswith("step-")]
        return [self.run.read_record(f"{self.folder}/{name}", Checkpoint) for name in names]

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.run.write_json(f"{self.folder}/step-{checkpoint.step:08d}.json", asdict(checkpoint))

    def save_state(self, tensors: dict[str, torch.Tensor], progress: dict[str, float]) -> None:
        """The prefix, its Adam moments and the counters, in one file that is whole or absent."""
        counters = {f"progress.{name}": torch.tensor(value, dtype=torch.float64) for name, value in progress.items()}
        self.run.write_bytes(f"{self.folder}/state.safetensors", save_tensors({**tensors, **counters}))

    def load_state(self) -> tuple[dict[str, torch.Tensor], dict[str, float]] | None:
        path = f"{self.folder}/state.safetensors"
        if not self.run.exists(path):
            return None
        tensors = load_tensors(self.run.read_bytes(path))
        counters = {name: tensors.pop(name).item() for name in list(tensors) if name.startswith("progress.")}
        return tensors, {name.removeprefix("progress."): value for name, value in counters.items()}

    def end(self, protocol: str) -> dict | None:
        """How the arm ended under a verification protocol: status (finished, stopped), step. None: not yet."""
        path = f"{self.folder}/end-{protocol}.json"
        if not self.run.exists(path):
            return None
        end = self.run.read_json(path)
        if not isinstance(end, dict) or not {"status", "step"} <= set(end):
            raise StorageError(f"{self.run.path(path)}: got no status and step of an arm's end")
        return end

    def set_end(self, protocol: str, status: str, step: int) -> None:
        if self.end(protocol) is None:
            self.run.write_json(f"{self.folder}/end-{protocol}.json", {"status": status, "step": step})
