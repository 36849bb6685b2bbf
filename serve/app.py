"""`serve run serve/config.yaml` and `serve run serve.app:build`; `python -m serve.app` drains before it stops."""

from pathlib import Path
from typing import Any

from lpc_ray.terminal import exit_on_error

CONFIG = Path(__file__).parent / "config.yaml"


def build(args: dict[str, Any]):
    """The application. args: fields of `ServerSettings`; without any, those of `serve/config.yaml`. Raises: ConfigError."""
    from lpc_ray.adapters.server import app

    return app.build(args or app.config_args(CONFIG))


if __name__ == "__main__":
    with exit_on_error("interrupted: the server had not started"):
        from lpc_ray.adapters.server import app

        app.main(CONFIG, __doc__)
