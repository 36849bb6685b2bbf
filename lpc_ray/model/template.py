"""A chat template: Jinja that comes with a model, run in the sandbox and with the names that transformers gives it."""

import json
from datetime import date as Date
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lpc_ray.errors import ConfigError, DataError

# The directives of strftime that take no argument, alone and without padding.
_DIRECTIVES = [f"%{pad}{letter}" for pad in ("-", "") for letter in "aAbBcdDeFgGhHIjmMnpPrRStTuUVwWxXyYzZ"]


def with_date(template: str, day: Date) -> str:
    """A template whose `strftime_now` writes `day`, by a macro of that name: so it does in whatever renders it."""
    if "strftime_now" not in template:
        return template
    moment = datetime(day.year, day.month, day.day)
    written = "".join(f".replace({one!r}, {moment.strftime(one)!r})" for one in _DIRECTIVES)
    return (
        f"{{%- macro strftime_now(format) -%}}{{{{ format{written}.replace('%%', '%') }}}}{{%- endmacro -%}}" + template
    )


class ChatText:
    """A compiled template. names: what it knows by name, such as `eos_token`.

    Raises: ConfigError for one that is no Jinja.
    """

    def __init__(self, template: str, names: dict[str, str]):
        self._names = names
        try:
            self._template = _compiled(template)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template is no Jinja: {_first_line(error)}") from error

    def __call__(self, messages: list[Any], add_generation_prompt: bool, **variables: Any) -> str:
        """The conversation as text. Raises: DataError with the template's own words where it refuses it."""
        known = {**self._names, "tools": None, "documents": None, **variables}
        try:
            return self._template.render(
                messages=[dict(message) for message in messages], add_generation_prompt=add_generation_prompt, **known
            )
        except Exception as error:  # the template is a model's own program, and fails as it likes
            roles = ", ".join(message["role"] for message in messages)
            raise DataError(
                f"the model's chat template refuses a conversation of {roles or 'no message'}: {_first_line(error)}"
            ) from error


@lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(template)


class _Generation(jinja2.ext.Extension):
    """The block `{% generation %}`, by which some templates mark what the assistant says; it writes its content."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _tojson(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
