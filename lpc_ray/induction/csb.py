"""`csb`: an output contract, a bounded answer, and a self-check against the contract (CSB-PI).

Source: ours, on the self-study of Cartridges, arXiv 2506.06266, section 4.1. No paper defines the name CSB; we read it as
contract, self-check, bounded.
"""

import random
import re
from typing import Annotated

from pydantic import Field

from lpc_ray.config.recipe import MOST
from lpc_ray.induction.base import ASK_TOO_LONG, Steps, Unit
from lpc_ray.induction.study import StudyFamily, assistant, defect_of, read_prompts, system_message, taught, user
from lpc_ray.model.thinking import said
from lpc_ray.records import TOP_K, Ask, Decoding, Message, Reply, Trace

PROMPTS = read_prompts("csb")


class ContractStudy(StudyFamily):
    """A question with a contract, answered in at most `max_answer_words`, then checked in a second turn.

    Both turns become traces. A conversation whose answer is over the bound, or whose check says fail or says neither, is
    one dropped row.
    """

    temperature: Annotated[float, Field(ge=0, le=100)] = 0.6
    max_question_tokens: Annotated[int, Field(ge=1, le=MOST)] = 512
    max_answer_words: Annotated[int, Field(ge=1, le=1_000_000)] = 60
    max_answer_tokens: Annotated[int, Field(ge=1, le=MOST)] = 256
    max_check_tokens: Annotated[int, Field(ge=1, le=MOST)] = 128

    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        [template], [task], [check] = PROMPTS["system"], PROMPTS["task"], PROMPTS["check"]
        system = system_message(template, unit.chunk)
        decoding = Decoding(self.temperature, self.max_question_tokens, seed=rng.getrandbits(31))
        [asked] = yield [Ask((system, user(rng.choice(PROMPTS["question"]))), decoding)]
        defect = defect_of(asked, "question", self.max_question_tokens)
        if defect:
            return [Trace(drop_reason=defect)]
        contract = rng.choice(PROMPTS["contracts"]).format(words=self.max_answer_words)
        talk = [user(task.format(question=said(asked).strip(), contract=contract))]
        context = (system, *_examples(check))
        [answer] = yield [Ask((*context, *talk), Decoding(max_tokens=self.max_answer_tokens), top_k=TOP_K)]
        defect = self._answer_defect(answer)
        if defect:
            return [Trace(drop_reason=defect)]
        checked = [*talk, assistant(answer.text), user(check)]
        [verdict] = yield [Ask((*context, *checked), Decoding(max_tokens=self.max_check_tokens), top_k=TOP_K)]
        defect = _check_defect(verdict)
        if defect:
            return [Trace(drop_reason=defect)]
        return [taught(context, talk, answer), taught(context, checked, verdict)]

    def _answer_defect(self, answer: Reply) -> str | None:
        text = said(answer)
        if not text.strip():
            return ASK_TOO_LONG if answer.is_too_long else "empty_answer"
        is_over = answer.finish_reason == "length" or len(text.split()) > self.max_answer_words
        return "over_bound" if is_over else None


def _examples(check: str) -> list[Message]:
    """The turns that show the teacher what a contract and a check are."""
    turns = [turn.replace("{check}", check) for turn in PROMPTS["examples"]]
    return [(assistant if number % 2 else user)(turn) for number, turn in enumerate(turns)]


def _check_defect(verdict: Reply) -> str | None:
    """The first word decides; a check that opens with neither word has not been made."""
    if verdict.is_too_long:
        return ASK_TOO_LONG
    found = re.match(r"\W*(pass|fail)(ed|es|s)?\b", said(verdict), re.IGNORECASE)
    if found is None:
        return "self_check_missing"
    return "self_check_failed" if found[1].lower() == "fail" else None


FAMILY = ContractStudy
