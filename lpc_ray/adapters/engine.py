"""What the engine pool asks of an engine. `cluster.engine.kind` names the module of this package that makes one, by

new_engine(model, recipe, resources) -> Engine
"""

from typing import Protocol

from lpc_ray.records import Ask, Reply


class Engine(Protocol):
    """The frozen model, in this process's event loop: with or without a prefix, with the top-k of what it generated.

    answered: how many replies it has given.
    """

    answered: int

    async def start(self) -> "Engine":
        """Load the model; called once. Raises: ConfigError when the engine cannot start with its settings."""
        ...

    def stop(self) -> None:
        """End the engine's own processes."""

    def is_dead(self) -> bool:
        """Whether its own processes have ended, so that no request can be answered any more."""
        ...

    async def generate(self, asks: list[Ask]) -> list[Reply]:
        """Replies in the order of `asks`.

        Raises: ArtifactError for a prefix of another model or a missing or unfit artifact, DataError for a prompt that does
        not fit.
        """
        ...
