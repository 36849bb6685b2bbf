"""Backward and step through a DeepSpeed engine that optimises the prefix alone; see `training.stepper.TrainingBackend`.

ZeRO-1 shards the optimizer state and the backbone stays outside the engine; ZeRO-3 shards the backbone as well. The
training state is saved as full tensors, so a run may resume on another number of workers.
"""

import math
from types import ModuleType

import torch
from torch import distributed

from lpc_ray.config.job import TrainingResources
from lpc_ray.config.recipe import TrainingRecipe
from lpc_ray.training.learner import PrefixLearner
from lpc_ray.training.packing import Windows
from lpc_ray.training.stepper import MOMENTS, Stepper, StepTaken, new_optimizer, parameter_groups


def prepare() -> None:
    load_deepspeed()


def describe(resources: TrainingResources) -> str:
    return f"DeepSpeed ZeRO-{resources.zero_stage}"


def shards_backbone(resources: TrainingResources) -> bool:
    return resources.zero_stage == 3


def new_stepper(learner: PrefixLearner, recipe: TrainingRecipe, resources: TrainingResources) -> Stepper:
    return DeepSpeedStepper(learner, recipe, resources.zero_stage)


def load_deepspeed() -> ModuleType:
    """DeepSpeed without its shared-memory operator, which serves inference alone and would be compiled for minutes, with
    a C++ compiler, when the first engine starts.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


class DeepSpeedStepper:
    """One rank's share of a training run; `torch.distributed` must be initialised. See `lpc_ray.training.stepper.Stepper`."""

    def __init__(self, learner: PrefixLearner, recipe: TrainingRecipe, zero_stage: int):
        deepspeed = load_deepspeed()
        self.rank = distributed.get_rank()
        self.world = distributed.get_world_size()
        self.learner = learner
        self.zero_stage = zero_stage
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": recipe.clip_norm,
            "zero_optimization": {"stage": zero_stage, "contiguous_gradients": True},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 1 << 30,
        }
        groups = parameter_groups(learner.prefix, recipe)
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=learner, optimizer=new_optimizer(groups), config=config, dist_init_required=False
        )
        self._create_optimizer_state(0)

    def step(self, micro_batches: list[Windows], global_targets: int, lr_factor: float) -> StepTaken:
        total = torch.zeros((), dtype=torch.float64, device=self.engine.device)
        teacher_before = self.learner.teacher_seconds
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * lr_factor
        for number, windows in enumerate(micro_batches):
            self.engine.set_gradient_accumulation_boundary(number == len(micro_batches) - 1)
            loss = self.engine(windows)
            # DeepSpeed averages gradients over ranks: undo it, so that the mean is over the global batch's targets.
            self.engine.backward(loss * (self.world / global_targets))
            total += loss.detach() / global_targets
        self.engine.step()
        teacher = (self.learner.teacher_seconds - teacher_before) / self.world
        sums = torch.stack([total, torch.full_like(total, teacher)])
        distributed.all_reduce(sums)
        loss, teacher_seconds = sums.tolist()
        norm = float(self.engine.get_global_grad_norm() or 0.0)
        return StepTaken(loss, norm if norm >= 0 else math.nan, teacher_seconds)  # -1 is DeepSpeed's word for no number

    def prefix_tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The whole prefix, keys and values fp32 [L, P, H, D], on CPU; every rank must call it."""
        prefix = self.learner.prefix
        keys = torch.cat([prefix.frozen_keys.cpu(), self._full(prefix.keys)], dim=1)
        values = torch.cat([prefix.frozen_values.cpu(), self._full(prefix.values)], dim=1)
        return keys, values

    def state(self) -> dict[str, torch.Tensor]:
        """Full fp32 prefix and Adam moments on CPU; every rank must call it."""
        keys, values = self.prefix_tensors()
        tensors = {"keys": keys, "values": values}
        for name, parameter in (("keys", self.learner.prefix.keys), ("values", self.learner.prefix.values)):
            for moment in MOMENTS:
                tensors[f"{name}.{moment}"] = self._moment(parameter, moment)
        return tensors

    def restore_moments(self, tensors: dict[str, torch.Tensor], step: int) -> None:
        """Continue as if `step` optimizer steps had been taken here (the prefix itself is in the learner already)."""
        from deepspeed.utils import safe_set_full_optimizer_state

        self._create_optimizer_state(step)
        for name, parameter in (("keys", self.learner.prefix.keys), ("values", self.learner.prefix.values)):
            for moment in MOMENTS:
                safe_set_full_optimizer_state(parameter, tensors[f"{name}.{moment}"].to(self.engine.device), moment)

    def close(self) -> None:
        self.engine.destroy()

    def _create_optimizer_state(self, step: int) -> None:
        """Adam's state, which torch makes lazily, made at once for every partition.

        DeepSpeed links ZeRO-1's state to the parameters when the first of several groups has stepped, and so misses the
        later groups; linking it here, after all exist, is right for both.
        """
        zero = self.optimizer
        flats = zero.single_partition_of_fp32_groups if self.zero_stage == 1 else zero.fp32_partitioned_groups_flat
        for flat in flats:
            state = zero.optimizer.state[flat]
            state["step"] = torch.tensor(float(step))
            for moment in MOMENTS:
                state[moment] = torch.zeros_like(flat)
        if self.zero_stage == 1:
            zero._hp_optimizer_states_linked = False
            zero._lazy_init_hp_params_optimizer_state()

    def _full(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        from deepspeed.utils import safe_get_full_fp32_param

        full = safe_get_full_fp32_param(parameter)
        assert full is not None
        return full.detach().float().cpu().reshape(self._shape(parameter))

    def _moment(self, parameter: torch.nn.Parameter, moment: str) -> torch.Tensor:
        from deepspeed.utils import safe_get_full_optimizer_state

        full = safe_get_full_optimizer_state(parameter, moment)
        assert full is not None
        return full.detach().float().cpu().reshape(self._shape(parameter))

    def _shape(self, parameter: torch.nn.Parameter) -> torch.Size:
        return getattr(parameter, "ds_shape", parameter.shape)
