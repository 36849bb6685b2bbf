"""`serve run serve/config.yaml` and `serve run serve.app:build`; `python -m serve.app` drains before it stops."""

from pathlib import Path
from typing import Any

from lpc_ray.adapters.server import app

CONFIG = Path(__file__).parent / "config.yaml"


def build(args: dict[str, Any]):
    """The application. args: fields of `ServerSettings`; without any, those of `serve/config.yaml`. Raises: ConfigError."""
    return app.build(args or app.config_args(CONFIG))


if __name__ == "__main__":
    app.main(CONFIG, __doc__)
