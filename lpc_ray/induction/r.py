"""`r`: reasoning traces. A task about the source, solved with its steps, decisions and rationale written out (R-PI).

Source: ours, on the self-study of Cartridges, arXiv 2506.06266, section 4.1. No paper defines such a family.
"""

import random
from typing import Annotated

from pydantic import Field

from lpc_ray.config.recipe import MOST
from lpc_ray.induction.base import Steps, Unit
from lpc_ray.induction.study import StudyFamily, defect_of, read_prompts, system_message, taught, user
from lpc_ray.model.thinking import said
from lpc_ray.records import TOP_K, Ask, Decoding, Trace

PROMPTS = read_prompts("r")


class Reasoning(StudyFamily):
    """The asker samples a task at `temperature`; the teacher, told to reason in the open, solves it greedily."""

    temperature: Annotated[float, Field(ge=0, le=100)] = 0.6
    max_question_tokens: Annotated[int, Field(ge=1, le=MOST)] = 512

    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        [asker], [solver] = PROMPTS["asker"], PROMPTS["solver"]
        decoding = Decoding(self.temperature, self.max_question_tokens, seed=rng.getrandbits(31))
        request = user(rng.choice(PROMPTS["task"]))
        [asked] = yield [Ask((system_message(asker, unit.chunk), request), decoding)]
        defect = defect_of(asked, "task", self.max_question_tokens)
        if defect:
            return [Trace(drop_reason=defect)]
        system, task = system_message(solver, unit.chunk), user(said(asked).strip())
        [reply] = yield [Ask((system, task), Decoding(max_tokens=self.max_answer_tokens), top_k=TOP_K)]
        return [taught([system], [task], reply)]


FAMILY = Reasoning
