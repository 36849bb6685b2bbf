"""A scripted teacher for families: replies without a model, and the tokenizers that go with them."""

from collections.abc import Callable

import numpy as np

from lpc_ray.induction.base import Family, Unit, plan_units
from lpc_ray.model.chat import Written
from lpc_ray.records import TOP_K, Ask, Document, Reply, digest_of

TEXT = " ".join(f"word{number}" for number in range(200))
DOCUMENT = Document(name="d", text=TEXT, digest=digest_of(TEXT))


def spans(text: str) -> list[tuple[int, int]]:
    """A tokenizer of words."""
    found, start = [], 0
    for word in text.split(" "):
        found.append((start, start + len(word)))
        start += len(word) + 1
    return found


class Render:
    """A chat template of characters: role marker, content, end-of-turn 2, newline 10; 7 where thinking is on."""

    def __call__(self, messages, add_generation_prompt: bool, thinking: bool | None = None) -> list[int]:
        ids = []
        for message in messages:
            ids += [1, ord(message["role"][0]), *map(ord, message["content"]), 2, 10]
        opening = [1, ord("a"), *([7] if thinking else [])]
        return [*ids, *opening] if add_generation_prompt else ids

    def written(self, messages) -> Written:
        return Written(self(messages[:-1], True), [*map(ord, messages[-1]["content"]), 2])


render = Render()


def reply(text: str, finish_reason: str = "stop", tokens: int = 3, logprob: float = 0.0) -> Reply:
    return Reply(
        text=text,
        token_ids=(5,) * (tokens - 1) + (2,),
        finish_reason=finish_reason,
        num_prompt_tokens=9,
        logprobs=np.full(tokens, logprob, np.float32),
        topk_ids=np.full((tokens, TOP_K), 5, np.int32),
        topk_logprobs=np.full((tokens, TOP_K), -3, np.float32),
    )


class Teacher:
    """Answers asks one by one with `script(ask)`, or with the next of a list of replies, and remembers them."""

    def __init__(self, script: Callable[[Ask], Reply] | list[Reply]):
        self.asked: list[Ask] = []
        self._replies = iter(script) if isinstance(script, list) else None
        self._script = script

    def __call__(self, asks: list[Ask]) -> list[Reply]:
        self.asked += asks
        return [next(self._replies) if self._replies is not None else self._script(ask) for ask in asks]


def units_of(family: Family, name: str, seed: int = 0) -> list[Unit]:
    return plan_units(family, name, [DOCUMENT], spans, "A list of words.", seed)
