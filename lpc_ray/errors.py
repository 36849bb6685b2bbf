"""Every error that lpc_ray raises for a user's sake. A message says what was got, what was wanted, and where."""


class LPCError(Exception):
    """Base of the family; a job prints it as one line and exits with code 2."""


class ConfigError(LPCError, ValueError):
    """A recipe or job config that cannot be carried out as written."""


class DataError(LPCError, ValueError):
    """Source material, cases or traces that are missing or malformed."""


class ArtifactError(LPCError, ValueError):
    """An LPC whose tensors, manifest or identity do not fit."""


class VerificationError(LPCError):
    """A verifier that could not run (never the same as a wrong answer)."""


class DivergedError(LPCError):
    """Training that does not come back: a loss, gradient or prefix that is no number, or a loss that has exploded."""


class PrefixNotFoundError(LPCError, KeyError):
    """A handle or digest that no store holds."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ClusterError(LPCError):
    """A Ray cluster that cannot be joined or started."""


class TerminalError(LPCError, OSError):
    """A terminal that takes nothing of what is to be shown."""


class StorageError(LPCError, OSError):
    """A store that cannot be read or written (disk full, read-only, unreachable)."""
