"""`ss`: self-study. The model asks itself about a chunk, then answers with the chunk before it (SS-PI).

Source: Cartridges, arXiv 2506.06266, section 4.1 and appendix C; METHODS section 3. Prompts are our own words.
"""

import random
from typing import Annotated

from pydantic import Field, model_validator

from lpc_ray.induction.base import Family, Steps, Unit
from lpc_ray.records import TOP_K, Ask, Chunk, Decoding, Document, Message, Trace
from lpc_ray.sources import Encode, sample_chunks

SYSTEM = """{description}The text below is one part of it. Rely on this text for everything you say.

<text>
{chunk}
</text>"""

SEED_PROMPTS: dict[str, tuple[str, ...]] = {
    "structuring": (
        "Write one message in which a user wants some of the facts of the text set out in a fixed format such as {form}. "
        "The message says which facts and which format. Write the message only.",
        "Write one request, as a user would, to arrange a stated part of the text's information as {form}. Name that part "
        "precisely. Output only the request.",
    ),
    "summarization": (
        "Write one message in which a user asks for a short summary of a particular section or subject of the text, which "
        "the message names. Write the message only.",
        "Write one request to sum up what the text says on one subject of your choice. Name the subject. Output only the "
        "request.",
    ),
    "question": (
        "Write one question that tests whether somebody knows a fact stated in the text. Give the names, numbers and dates "
        "needed to understand it without seeing the text. Write the question only.",
        "Ask one precise question whose answer is a detail in the text. Mention who or what it is about. Output only the "
        "question.",
    ),
    "use_case": (
        "Think of a practical situation in which somebody needs this text. Write the question that person would ask, with "
        "the details of the situation. Write the question only.",
        "Imagine a user with a job to do for which this text matters. Write that user's one question. Output only the "
        "question.",
    ),
    "creative": (
        "Write one unusual, inventive question that the text can still answer. Write the question only.",
        "Write one playful request that makes use of facts of the text. Output only the request.",
    ),
}
FORMATS = ("JSON", "YAML", "a Markdown table", "a bullet list", "XML", "CSV")


class SelfStudy(Family):
    """`num_chunks` windows of the corpus, `conversations_per_chunk` conversations on each; the five seed types equally.

    The asker samples at `temperature`; the teacher answers greedily and keeps its top-20 log-probs. Both lengths in tokens.
    """

    num_chunks: Annotated[int, Field(ge=1)] = 3
    conversations_per_chunk: Annotated[int, Field(ge=1)] = 16
    min_chunk_tokens: Annotated[int, Field(ge=1)] = 512
    max_chunk_tokens: Annotated[int, Field(ge=1)] = 4096
    temperature: Annotated[float, Field(ge=0)] = 0.6
    max_question_tokens: Annotated[int, Field(ge=1)] = 512
    max_answer_tokens: Annotated[int, Field(ge=1)] = 1024

    @model_validator(mode="after")
    def _lengths_can_be_drawn(self) -> "SelfStudy":
        if self.min_chunk_tokens > self.max_chunk_tokens:
            raise ValueError(
                f"got min_chunk_tokens {self.min_chunk_tokens} over max_chunk_tokens {self.max_chunk_tokens}"
            )
        return self

    def chunks(self, documents: list[Document], spans: Encode, description: str, seed: int) -> list[tuple[Chunk, int]]:
        return [
            (chunk, self.conversations_per_chunk)
            for document in documents
            for chunk in sample_chunks(
                document, spans, self.num_chunks, self.min_chunk_tokens, self.max_chunk_tokens, description, seed
            )
        ]

    def induce(self, unit: Unit, rng: random.Random) -> Steps:
        system = Message(role="system", content=system_prompt(unit.chunk))
        kind = rng.choice(sorted(SEED_PROMPTS))
        seed_prompt = rng.choice(SEED_PROMPTS[kind]).replace("{form}", rng.choice(FORMATS))
        asking = Decoding(self.temperature, self.max_question_tokens, seed=rng.getrandbits(31))
        [asked] = yield [Ask((system, Message(role="user", content=seed_prompt)), asking)]
        question = asked.text.strip()
        if not question:
            return [Trace(drop_reason="empty_question")]
        if asked.finish_reason == "length":
            return [Trace(drop_reason="question_cut")]
        user = Message(role="user", content=question)
        [reply] = yield [Ask((system, user), Decoding(max_tokens=self.max_answer_tokens), top_k=TOP_K)]
        if not reply.text.strip():
            return [Trace(drop_reason="empty_answer")]
        return [Trace(messages=(user, Message(role="assistant", content=reply.text)), reply=reply)]


def system_prompt(chunk: Chunk) -> str:
    """What asker and teacher see before the conversation, and the student never does."""
    description = f"{chunk.description.rstrip()}\n" if chunk.description else ""
    return SYSTEM.format(description=description, chunk=chunk.text)


FAMILY = SelfStudy
