"""A chat request put as the prefix that it names was trained: with its recipe's thinking, and on its recipe's day."""

from collections.abc import Sequence
from copy import copy
from datetime import date as Date
from functools import lru_cache
from pathlib import Path
from typing import Any

from lpc_ray.artifacts.store import read_manifest
from lpc_ray.errors import ArtifactError
from lpc_ray.model.chat import SWITCHES, PromptFormat
from lpc_ray.model.template import with_date
from lpc_ray.records import PrefixRef


def as_trained(renderer: Any, requests: Sequence[Any], prefixes: Sequence[PrefixRef]) -> Any:
    """vLLM's renderer of chats with the day on which the first of `prefixes` that has a recipe was trained.

    requests: copies of one request, which get the recipe's switch for thinking where the client sent none. Mutates them.
    renderer: as it is where no prefix has a recipe, or the template asks for no date. Raises: ArtifactError.
    """
    trained = next((found for prefix in prefixes if (found := trained_prompt(prefix.folder)) is not None), None)
    if trained is None:
        return renderer
    for request in requests:
        sent = request.chat_template_kwargs or {}
        if trained.thinking is not None and not any(name in sent for name in SWITCHES):
            request.chat_template_kwargs = {**dict.fromkeys(SWITCHES, trained.thinking), **sent}
    template = renderer.chat_template or renderer.renderer.get_tokenizer().get_chat_template()
    dated = copy(renderer)
    dated.chat_template = with_date(template, trained.date)
    return dated if dated.chat_template != template else renderer


@lru_cache(maxsize=1024)
def trained_prompt(folder: str) -> PromptFormat | None:
    """How the recipe of the LPC in a local folder had prompts put; None for one without a recipe.

    Raises: ArtifactError where its manifest says what no recipe can.
    """
    told = read_manifest(Path(folder)).provenance.get("prompt")
    if told is None:
        return None
    try:
        thinking, date = told.get("thinking"), told.get("date")
        return PromptFormat(thinking=thinking, date=PromptFormat().date if date is None else Date.fromisoformat(date))
    except (AttributeError, TypeError, ValueError) as error:
        raise ArtifactError(f"{folder}: provenance.prompt: got {told!r}, wanted a recipe's prompt: {error}") from error
