"""What a server is configured by: the `args` of `serve/config.yaml`."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lpc_ray.config.loading import Strict, validated
from lpc_ray.errors import ConfigError


class ServerSettings(Strict):
    """Every field has a default that works on two cores; unknown ones are refused.

    model: Hugging Face id, local folder, or the embedded model; name: what clients call it (default: the last part).
    artifacts: store of LPCs by digest; registry: store of the handle table (default: beside the artifacts).
    host_tier: local folder of the host tier, one subfolder per replica (default: one of this user's own in /dev/shm);
    host_tier_bytes: what each may hold.
    keys: key file, read again when it changes; without one, programs on this machine are served, and who brings the admin key
    may manage (`lpc_ray.serving.doors`). origins: pages of other hosts that a browser may let call the server.
    require_gate: load only prefixes that passed the publish gate of their recipe.
    prefixes: handle → digest, loaded when the registry does not know the handle yet.
    threads: of each CPU engine, unbound to cores (give engines that share cores one each); without, vLLM binds its own.
    tool_call_parser: vLLM's parser of the tool calls that the model writes (SmolLM2 writes hermes'); null takes no tools.
    engine: more arguments of vLLM's engine. autoscaling: Ray Serve's autoscaling_config, instead of `replicas`.
    """

    model: str = "smollm2-135m-instruct"
    revision: str | None = None
    name: str | None = None
    device: Literal["cpu", "gpu"] = "cpu"
    dtype: str = "float32"
    max_model_len: int = Field(2048, ge=16)
    max_num_seqs: int = Field(64, ge=1)
    kv_cache_gib: int = Field(1, ge=1)
    threads: int | None = Field(None, ge=1)
    engine: dict[str, Any] = Field(default_factory=lambda: {"enforce_eager": True})
    tool_call_parser: str | None = "hermes"
    artifacts: str = "runs/demo/artifacts"
    registry: str | None = None
    host_tier: str | None = Field(None, min_length=1)
    host_tier_bytes: int = Field(1 << 30, ge=1)
    keys: str | None = None
    origins: tuple[str, ...] = ()
    require_gate: bool = False
    prefixes: dict[str, str] = Field(default_factory=dict)
    max_body_bytes: int = Field(1 << 20, ge=1024)
    replicas: int = Field(1, ge=1)
    replica_cpus: float = Field(1, gt=0)
    autoscaling: dict[str, Any] | None = None
    max_ongoing_requests: int = Field(256, ge=1)
    health_check_period_s: float = Field(2, gt=0)

    @property
    def served_name(self) -> str:
        return self.name or Path(self.model).name

    @property
    def registry_url(self) -> str:
        return self.registry or self.artifacts.rstrip("/") + "-served"


def server_settings(raw: dict[str, Any]) -> ServerSettings:
    """Relative local folders become absolute, for replicas run elsewhere.

    Raises: ConfigError that names the field, and for an unknown one the nearest valid one.
    """
    settings = validated(ServerSettings, raw, "server settings")
    if ":" in settings.served_name or "+" in settings.served_name:
        raise ConfigError(f"server settings: name: got {settings.served_name!r}, wanted one without ':' and '+'")
    paths = {
        name: str(Path(value).absolute())
        for name in ("artifacts", "registry", "keys", "host_tier")
        if (value := getattr(settings, name)) is not None and "://" not in value
    }
    return settings.model_copy(update=paths)
