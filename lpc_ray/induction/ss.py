"""`ss`: self-study. The model asks itself about a chunk, then answers with the chunk before it (SS-PI).

Source: Cartridges, arXiv 2506.06266, section 4.1 and appendix C. Prompts are our own words.
"""

import random
from typing import Annotated

from pydantic import Field

from lpc_ray.config.recipe import MOST
from lpc_ray.induction.base import Steps, Unit
from lpc_ray.induction.study import StudyFamily, assistant, defect_of, read_prompts, system_message, taught, user
from lpc_ray.model.thinking import said
from lpc_ray.records import TOP_K, Ask, Decoding, Trace

PROMPTS = read_prompts("ss")
SEED_TYPES = ("creative", "question", "structuring", "summarization", "use_case")


class SelfStudy(StudyFamily):
    """Conversations of `turns` questions and answers each; the five types of seed prompt equally often.

    The asker samples at `temperature`; the teacher answers greedily and keeps its top-20 log-probs. Both lengths in
    tokens. thinking_probability: how often the teacher thinks before it answers, for models whose chat template can
    switch that; None leaves it to the template. A setting at a default that is newer than its family is no part of an id.
    """

    temperature: Annotated[float, Field(ge=0, le=100)] = 0.6
    max_question_tokens: Annotated[int, Field(ge=1, le=MOST)] = 512
    turns: Annotated[int, Field(ge=1, le=1000, exclude_if=lambda turns: turns == 1)] = 1
    thinking_probability: Annotated[
        float | None, Field(ge=0, le=1, exclude_if=lambda probability: probability is None)
    ] = None

    def switches_thinking(self) -> bool:
        return self.thinking_probability is not None

    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        [template] = PROMPTS["system"]
        [follow_up] = PROMPTS["follow-up"]
        system = system_message(template, unit.chunk)
        seed_prompt = rng.choice(PROMPTS[rng.choice(SEED_TYPES)])
        asking = [user(seed_prompt.replace("{form}", rng.choice(PROMPTS["forms"])))]
        talk, traces = [], []
        for _ in range(self.turns):
            decoding = Decoding(self.temperature, self.max_question_tokens, seed=rng.getrandbits(31))
            [asked] = yield [Ask((system, *asking), decoding)]
            defect = defect_of(asked, "question", self.max_question_tokens)
            if defect:
                return [*traces, Trace(drop_reason=defect)]
            talk.append(user(said(asked).strip()))
            thinking = None if self.thinking_probability is None else rng.random() < self.thinking_probability
            decoding = Decoding(max_tokens=self.max_answer_tokens)
            [reply] = yield [Ask((system, *talk), decoding, top_k=TOP_K, thinking=thinking)]
            traces.append(taught([system], talk, reply, thinking))
            if traces[-1].drop_reason:
                break
            talk.append(assistant(reply.text))
            asking += [assistant(said(asked).strip()), user(follow_up.format(answer=said(reply).strip()))]
        return traces


FAMILY = SelfStudy
