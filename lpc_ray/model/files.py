"""A model's config and tokenizer, by folder or Hugging Face id. No code that comes with a model runs."""

from collections.abc import Callable
from typing import Any

from lpc_ray.errors import ConfigError
from lpc_ray.model.embedded import model_file
from lpc_ray.model.finding import CONFIG


def text_config(model: str, revision: str | None = None) -> Any:
    """The config of a model's text part. Raises: ConfigError when it cannot be read, or needs code of the model's own."""
    from transformers import AutoConfig

    return _read(AutoConfig.from_pretrained, model, revision).get_text_config()


def read_tokenizer(model: str, revision: str | None = None) -> Any:
    """The tokenizer of a model. Raises: ConfigError as `text_config`."""
    from transformers import AutoTokenizer

    return _read(AutoTokenizer.from_pretrained, model, revision)


def _read(from_pretrained: Callable[..., Any], model: str, revision: str | None) -> Any:
    if model_file(model, CONFIG, revision) is None:
        raise ConfigError(f"model {model!r}: {CONFIG} is missing")
    try:
        return from_pretrained(model, revision=revision, trust_remote_code=False)
    except Exception as error:  # a malformed file fails in whatever way the code that reads it knows
        raise ConfigError(f"model {model!r}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("trust_remote_code" in line for line in lines):
        return "got a model with code of its own (auto_map), wanted one that transformers knows: no model's code is run"
    first = (lines or ["no message"])[0][:300]
    return first if isinstance(error, (OSError, ValueError)) else f"cannot be read: {type(error).__name__}: {first}"
