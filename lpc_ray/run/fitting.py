"""Whether anything of a trace set can be trained on: units that are all too long would fail an arm only when it is trained."""

import random
from collections.abc import Callable, Iterable, Sequence

from lpc_ray.errors import DataError
from lpc_ray.induction.base import Family, Unit
from lpc_ray.model.chat import ChatTemplate
from lpc_ray.records import Ask, Trace, digest_of

Encode = Callable[[str], list[int]]


def check_some_fit(
    where: str,
    family: Family,
    units: Sequence[Unit],
    seed: int,
    template: ChatTemplate,
    encode: Encode,
    context_tokens: int,
) -> None:
    """Looks at units until one fits: by its first asks with their replies where it asks a teacher, else by its traces.

    Raises: DataError that starts with `where`, when the shortest of all is longer than `context_tokens`.
    """
    shortest: int | None = None
    for unit in units:
        lengths = list(_lengths(family, unit, seed, template, encode))
        if not lengths or min(lengths) <= context_tokens:
            return
        shortest = min(lengths) if shortest is None else min(shortest, *lengths)
    if shortest is not None:
        raise DataError(
            f"{where}: got {len(units)} units of which the shortest takes {shortest} tokens with its template and "
            f"reply, wanted some of at most the {context_tokens} of recipe.induction.context_tokens and the model"
        )


def _lengths(family: Family, unit: Unit, seed: int, template: ChatTemplate, encode: Encode) -> Iterable[int]:
    """Tokens of each first ask with its reply, or of each trace without a teacher; none for what is dropped anyway."""
    steps = family.induce(unit, random.Random(digest_of(unit.id, seed)))
    try:
        asks = next(steps)
    except StopIteration as ended:
        return [length for trace in ended.value if (length := _length_of(trace, template, encode)) is not None]
    finally:
        steps.close()
    return [_asked(ask, template) for ask in asks]


def _asked(ask: Ask, template: ChatTemplate) -> int:
    return len(template(ask.messages, True, ask.thinking)) + ask.decoding.max_tokens


def _length_of(trace: Trace, template: ChatTemplate, encode: Encode) -> int | None:
    if trace.drop_reason:
        return None
    if not trace.messages:
        return len(encode(trace.text))
    written = template.written(trace.messages)
    return None if written.defect else len(written.prompt) + len(written.answer)
