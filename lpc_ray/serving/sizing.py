"""How long and how large prefixes and requests are: the sizing contract."""

from dataclasses import dataclass

from lpc_ray.errors import ArtifactError, ConfigError

KINDS = ("cartridge", "reasoncache", "kv_prefix", "skill")
PLACEHOLDER_ID = 0


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """Tokens the engine schedules for one request. placeholder_id: what stands for the prefix until native support."""

    prefix_tokens: int
    prompt_tokens: int
    placeholder_id: int = PLACEHOLDER_ID

    @property
    def total_tokens(self) -> int:
        return self.prefix_tokens + self.prompt_tokens

    def token_ids(self, prompt: list[int]) -> list[int]:
        """Placeholders, then the prompt."""
        assert len(prompt) == self.prompt_tokens
        return [self.placeholder_id] * self.prefix_tokens + prompt


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


def bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """Bytes of one prefix token: keys and values of all layers."""
    return num_layers * num_kv_heads * head_dim * 2 * dtype_bytes


def prefix_bytes(num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int, num_tokens: int) -> int:
    """Bytes of the two tensors of a prefix (a file adds its header)."""
    return bytes_per_token(num_layers, num_kv_heads, head_dim, dtype_bytes) * num_tokens


def check_kind(kind: str) -> str:
    """Raises: ArtifactError for a resource kind that is not a learned prefix."""
    if kind not in KINDS:
        raise ArtifactError(f"kind: got {kind!r}, wanted one of {', '.join(KINDS)}")
    return kind
