"""How many of a prefix's tokens a request is served, and which token id stands for each of them in its prompt."""

from collections.abc import Container, Iterable

from lpc_ray.errors import ArtifactError, ConfigError

PLACEHOLDER_ID = 0


def placeholder_of(control_tokens: Iterable[int], ends: Container[int], vocab_size: int) -> int:
    """The token that stands for a prefix position: the last control token below `vocab_size` that ends no reply.

    Any id would do for the keys and values, which come from the prefix; but penalties count a prompt's tokens, and no reply
    needs this one.
    """
    return max((token for token in control_tokens if token < vocab_size and token not in ends), default=PLACEHOLDER_ID)


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
