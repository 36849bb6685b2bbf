"""`ar_ts`: task-specific Active Reading. Stage 1 also reads what the knowledge will be used for.

Source: Active Reading, arXiv 2508.09494, section 3. Prompts are our own words.
"""

import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from lpc_ray.induction.ar_ta import ActiveReading
from lpc_ray.induction.study import read_prompts

PROMPTS = read_prompts("ar_ts")
_DELIMITER = re.compile(r"^[ \t]*={3,}[ \t]*$", re.MULTILINE)
_HEADING = re.compile(r"^[ \t]*##(?!.*question)", re.MULTILINE | re.IGNORECASE)


class TaskActiveReading(ActiveReading):
    """`task`: a description of the target task, never one of its held-out cases.

    The strategies are what follows the last delimiter line, or without one the first heading that is not of the
    questions.
    """

    task: Annotated[str, Field(min_length=1)]

    def given_texts(self) -> Iterable[str]:
        return (self.task,)

    def request(self) -> str:
        [wording] = PROMPTS["strategies"]
        return wording.format(count=self.max_strategies, task=self.task.strip())

    def list_in(self, text: str) -> str:
        _, *after = _DELIMITER.split(text)
        heading = _HEADING.search(text)
        return after[-1] if after else text[heading.start() :] if heading else ""


FAMILY = TaskActiveReading
