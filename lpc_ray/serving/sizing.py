"""How many of a prefix's tokens a request is served, and which token id stands for each of them in its prompt."""

from lpc_ray.errors import ArtifactError, ConfigError

PLACEHOLDER_ID = 0


def served_tokens(num_tokens: int, block_tokens: int, align: str = "exact") -> int:
    """How many of a prefix's tokens are served: all, or under align="down" whole blocks only.

    Aligning drops trained tokens and moves the prompt; it exists for imports that ask for it, never by default.
    Raises: ConfigError for another `align`; ArtifactError when nothing would be left.
    """
    if align == "exact":
        return num_tokens
    if align != "down":
        raise ConfigError(f"align: got {align!r}, wanted exact or down")
    aligned = num_tokens // block_tokens * block_tokens
    if aligned == 0:
        raise ArtifactError(f"align: down leaves none of {num_tokens} tokens at a block size of {block_tokens}")
    return aligned
