"""What a user gives as text, put through the model's tokenizer and chat template before anything heavy is loaded."""

from collections.abc import Iterable, Sequence
from itertools import islice

from lpc_ray.config.recipe import Recipe
from lpc_ray.errors import ConfigError, DataError
from lpc_ray.induction.base import Family
from lpc_ray.model.chat import ChatTemplate
from lpc_ray.model.tokenizer import TextTokenizer
from lpc_ray.records import Case, Document, Message
from lpc_ray.verification.base import Benchmark

_TRIED = 64  # of a family's conversations: a template that cannot take one kind of them takes none


def longest_prompt(
    benchmark: Benchmark, system: str | None, template: ChatTemplate, document: str | None = None
) -> int:
    """Tokens of the longest first request of the cases, with the template's own. document: what is read beside the longest.

    Raises: DataError where the template refuses a request, and what the verifier kind raises.
    """
    prompts = {case.id: _tokens(benchmark, case, None, system, template) for case in benchmark.cases}
    longest = max(benchmark.cases, key=lambda case: prompts[case.id])
    return prompts[longest.id] if document is None else _tokens(benchmark, longest, document, system, template)


def _tokens(benchmark: Benchmark, case: Case, document: str | None, system: str | None, template: ChatTemplate) -> int:
    return len(template(benchmark.messages(case, document, system), True))


def check_families(families: dict[str, Family], template: ChatTemplate) -> None:
    """Raises: ConfigError for a family that switches thinking where the template cannot, DataError for one whose
    conversations the template refuses, or none of whose first conversations can be put as the model would write its answer.
    """
    for name, family in families.items():
        where = f"recipe.induction.families.{name}"
        if family.switches_thinking() and template.switch is None:
            raise ConfigError(f"{where}.thinking_probability: the model's chat template has no switch for thinking")
        defects = [
            _defect(where, number, messages, template)
            for number, messages in enumerate(islice(family.given_conversations(), _TRIED), start=1)
        ]
        if defects and all(defects):
            raise DataError(f"{where}: got {defects[0]} for every conversation, wanted some that can be trained on")


def _defect(where: str, number: int, messages: Sequence[Message], template: ChatTemplate) -> str | None:
    try:
        if messages[-1]["role"] == "assistant":
            return template.written(messages).defect
        template(messages, True)
    except DataError as error:
        raise DataError(f"{where}: conversation {number}: {error}") from error
    return None


def check_vocabulary(
    recipe: Recipe,
    documents: Sequence[Document],
    cases: Sequence[Case],
    families: dict[str, Family],
    tokenizer: TextTokenizer,
    num_tokens: int | None,
) -> None:
    """Raises: DataError for a text with a token that the model has no row for. num_tokens: rows; None where unknown."""
    if num_tokens is None or tokenizer.max_id < num_tokens:
        return
    for where, text in _texts(recipe, documents, cases, families):
        odd = next((token for token in tokenizer.encode(text) if token >= num_tokens), None)
        if odd is not None:
            raise DataError(
                f"{where}: got {tokenizer.decode([odd])!r}, token {odd} of the tokenizer, wanted tokens that the model has: "
                f"its vocab_size is {num_tokens}"
            )


def _texts(
    recipe: Recipe, documents: Sequence[Document], cases: Sequence[Case], families: dict[str, Family]
) -> Iterable[tuple[str, str]]:
    yield from ((f"source {document.name}", document.text) for document in documents)
    yield "recipe.source.description", recipe.source.description
    yield "recipe.prompt.system", recipe.prompt.system or ""
    yield from ((f"case {case.id!r}", case.question) for case in cases)
    for name, family in families.items():
        where = f"recipe.induction.families.{name}"
        yield from ((where, text) for text in family.given_texts())
        yield from ((where, message["content"]) for one in family.given_conversations() for message in one)
