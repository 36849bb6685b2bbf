"""Scripted replies for verifiers."""

import numpy as np

from lpc_ray.records import Ask, Reply


def reply(text: str, finish_reason: str = "stop", prompt_tokens: int = 5) -> Reply:
    tokens = tuple(range(len(text.split())))
    return Reply(
        text=text,
        token_ids=tokens,
        finish_reason=finish_reason,
        num_prompt_tokens=prompt_tokens,
        logprobs=np.zeros(0, np.float32),
        topk_ids=np.zeros((len(tokens), 0), np.int32),
        topk_logprobs=np.zeros((len(tokens), 0), np.float32),
    )


class Scripted:
    """Answers every ask with the next text of its list, the last one again and again; remembers the asks."""

    def __init__(self, *texts: str, finish_reason: str = "stop"):
        self.texts = list(texts)
        self.finish_reason = finish_reason
        self.asked: list[Ask] = []

    def __call__(self, asks: list[Ask]) -> list[Reply]:
        self.asked += asks
        return [reply(self.texts.pop(0) if len(self.texts) > 1 else self.texts[0], self.finish_reason) for _ in asks]
