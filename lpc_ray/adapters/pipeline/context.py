"""What the stages of a run share."""

from functools import cached_property

from lpc_ray.adapters.mlflow import Tracker, check_tracking
from lpc_ray.adapters.ray.machines import Machines
from lpc_ray.adapters.ray.sweep import prefix_answerer
from lpc_ray.home import make_in_cache
from lpc_ray.model.embedded import prefix_cache
from lpc_ray.report.ledger.ledger import StepScore, best_step
from lpc_ray.run.arms import Arm
from lpc_ray.run.checkpoints import ArmStore
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.plan import Plan
from lpc_ray.run.records import arm_record, verifier
from lpc_ray.terminal import Console
from lpc_ray.verification.outcomes import Answerer


class RunContext:
    """One plan, the run folder it writes, the terminal it speaks to and the machines it computes on.

    Raises: StorageError for a run that cannot be written, ConfigError for tracking that cannot be reached.
    """

    def __init__(self, plan: Plan, run: RunFolder, say: Console):
        self.plan, self.run, self.say = plan, run, say
        self.recipe, self.cluster = plan.config.recipe, plan.config.cluster
        self.machines = Machines(plan, run, say)
        self.verifier = verifier(plan, run)
        self.cache = prefix_cache()
        if not run.store.is_local:
            make_in_cache(self.cache)
        check_tracking(plan.config, run)
        run.store.check_writable()

    @cached_property
    def tracker(self) -> Tracker:
        return Tracker(self.plan.config, self.plan.fingerprint, self.run)

    def open_arms(self) -> list[Arm]:
        """The arms that have not ended under this protocol."""
        return [arm for arm in self.plan.arms if ArmStore(self.run.arm(arm.id)).end(self.plan.protocol) is None]

    def best_step(self, arm: Arm) -> StepScore | None:
        """The arm's step with the best tune score; None before one is verified."""
        return best_step(arm_record(self.plan, self.run, arm).steps)

    def prefix(self, digest: str, num_tokens: int) -> Answerer:
        """An LPC of the run, to be verified."""
        return prefix_answerer(self.run, digest, num_tokens, self.cache)
