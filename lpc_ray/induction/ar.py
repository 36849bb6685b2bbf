"""`ar`: Active Reading in one step: one request asks for views, questions, procedures and reasoning about the chunk (AR-PI).

Source: after Active Reading, arXiv 2508.09494, section 3. No paper defines the one-step form; its definition is ours.
"""

import random
from typing import Annotated

from pydantic import Field

from lpc_ray.induction.base import Steps, Unit
from lpc_ray.induction.study import StudyFamily, read_prompts, system_message, taught, user
from lpc_ray.records import TOP_K, Ask, Decoding

PROMPTS = read_prompts("ar")


class OneStepReading(StudyFamily):
    """One request per unit, in one of several wordings, answered at `temperature` (greedy answers would repeat)."""

    temperature: Annotated[float, Field(ge=0, le=100)] = 0.7

    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        [template] = PROMPTS["system"]
        system = system_message(template, unit.chunk)
        subject = unit.chunk.description.strip().rstrip(".") or "the text"
        request = user(rng.choice(PROMPTS["request"]).format(subject=subject))
        decoding = Decoding(self.temperature, self.max_answer_tokens, seed=rng.getrandbits(31))
        [reply] = yield [Ask((system, request), decoding, top_k=TOP_K)]
        return [taught([system], [request], reply)]


FAMILY = OneStepReading
