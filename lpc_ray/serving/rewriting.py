"""An OpenAI request with a prefix → what the engine is asked, and its answer → what the client receives.

Requests and answers are plain JSON values here: the same rules hold for chat and for text completions.
"""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from lpc_ray.records import PrefixRef
from lpc_ray.serving.contract import cache_salt, transfer_params
from lpc_ray.serving.grammars import check_grammars
from lpc_ray.serving.refusal import Refusal
from lpc_ray.serving.sizing import PLACEHOLDER_ID

MAX_SAMPLES = 16
MAX_SEQUENCES = 128

# What a client must not send: it would name another tenant's blocks, reach into the engine, or bypass the connector.
_RESERVED = (
    "kv_transfer_params",
    "ec_transfer_params",
    "cache_salt",
    "vllm_xargs",
    "request_id",
    "session_id",
    "priority",
    "prompt_logprobs",  # false counts as 0 to the engine, and ends it
)
# What the engine answers from the prompt's own logits or text, which placeholders do not have.
_UNSERVED = (
    "echo",
    "prompt_embeds",
    "use_beam_search",
    "return_prompt_text",
    "return_token_offsets",
    "suffix",
)


def check_request(body: Any, context_tokens: int) -> dict[str, Any]:
    """`body`, if it is a JSON object without fields that clients must not send. What is cheap to see is looked at first.

    Raises: Refusal 400 naming the field, also for more samples or prompts than one request may have.
    """
    if not isinstance(body, dict):
        raise Refusal(400, "invalid_json", f"got a body of type {type(body).__name__}, wanted a JSON object")
    for field in _RESERVED:
        if body.get(field) is not None:
            raise Refusal(400, "reserved_field", f"{field}: set by the server, never by a client", param=field)
    for field in _UNSERVED:
        if body.get(field) is not None and body[field] is not False:
            raise Refusal(400, "unsupported_field", f"{field}: not served here", param=field)
    samples = body.get("n")
    if samples is not None and (type(samples) is not int or samples > MAX_SAMPLES):
        raise Refusal(
            400, "too_many_samples", f"n: got {samples!r}, wanted a number of at most {MAX_SAMPLES}", param="n"
        )
    if sequences_of(body) > MAX_SEQUENCES:
        message = f"got {sequences_of(body)} replies to write, prompts times n, wanted at most {MAX_SEQUENCES}"
        raise Refusal(400, "too_many_sequences", message, param="prompt")
    _check_prompt(body.get("prompt"), context_tokens)
    check_grammars(body)
    return body


def sequences_of(body: dict[str, Any]) -> int:
    """How many replies a checked request has the engine write."""
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    return prompts * max(1, body.get("n") or 1)


def _check_prompt(prompt: Any, context_tokens: int) -> None:
    """A prompt is text, token ids, or a list of either; a number that only looks like a token id is none."""
    if prompt is None or isinstance(prompt, str):
        return
    items: list[Any] = prompt if isinstance(prompt, list) else [None]
    if len(items) > max(context_tokens, MAX_SEQUENCES):
        raise Refusal(
            400, "too_many_tokens", f"prompt: got {len(items)} items, wanted no more than fit", param="prompt"
        )
    if all(isinstance(item, str) for item in items):
        return
    token_lists: list[list[Any]] = items if all(isinstance(item, list) for item in items) else [items]
    longest = max(map(len, token_lists))
    if longest > context_tokens:
        message = f"prompt: got {longest} tokens, wanted at most {context_tokens}"
        raise Refusal(400, "context_length_exceeded", message, param="prompt")
    if not all(type(token) is int for tokens in token_lists for token in tokens):
        raise Refusal(400, "invalid_request", "prompt: wanted text, token ids, or a list of either", param="prompt")


def json_body(raw: bytes) -> Any:
    """Raises: Refusal 400 for a body that is no JSON, or holds a string that is no text."""
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "invalid_json", f"body: {error or 'nested too deeply'}") from error


def too_large(num_bytes: int, most: int) -> Refusal:
    return Refusal(413, "body_too_large", f"got a body of {num_bytes} bytes, wanted at most {most}")


@dataclass(frozen=True, slots=True)
class Rewriting:
    """One request's prefixes, in order, and what the engine needs to find them; without prefixes it changes nothing.

    tenant: set when its blocks are shared with no other tenant.
    """

    prefixes: tuple[PrefixRef, ...] = ()
    placeholder_id: int = PLACEHOLDER_ID
    tenant: str | None = None

    @property
    def prefix_tokens(self) -> int:
        return sum(prefix.num_tokens for prefix in self.prefixes)

    @property
    def cache_salt(self) -> str | None:
        return cache_salt(self.prefixes, self.tenant)

    @property
    def transfer_params(self) -> dict[str, Any] | None:
        return transfer_params(self.prefixes) if self.prefixes else None

    def token_ids(self, prompt: list[int]) -> list[int]:
        return [self.placeholder_id] * self.prefix_tokens + prompt

    def check_room(self, prompt_tokens: int, max_tokens: int | None, context_tokens: int) -> None:
        """Raises: Refusal 400 when prompt and reply do not fit the context beside the prefix."""
        room = context_tokens - self.prefix_tokens
        asked = prompt_tokens + (max_tokens or 1)
        if prompt_tokens < 1 or asked > room:
            raise Refusal(
                400,
                "context_length_exceeded",
                f"got a prompt of {prompt_tokens} tokens and a reply of up to {max_tokens or 1}, wanted at least 1 and "
                f"together at most {room}: the context is {context_tokens}, the prefix {self.prefix_tokens}",
                param="messages",
            )

    def correct(self, answer: dict[str, Any], prompts: int = 1) -> dict[str, Any]:
        """The answer or stream chunk with the client's own tokens counted and the prefix's counted apart. Mutates it.

        prompts: of how many prompts the usage tells (a text completion may have several).
        """
        answer.pop("kv_transfer_params", None)
        usage = answer.get("usage")
        if isinstance(usage, dict):
            hidden = self.prefix_tokens * prompts
            usage["prompt_tokens"] -= hidden
            usage["total_tokens"] -= hidden
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict) and details.get("cached_tokens"):
                details["cached_tokens"] = max(0, details["cached_tokens"] - hidden)
            usage["prefix_tokens"] = hidden
        for part in [answer, *answer.get("choices", [])]:
            if part.get("prompt_token_ids"):
                part["prompt_token_ids"] = part["prompt_token_ids"][self.prefix_tokens :]
        return answer

    def correct_event(self, event: str, model: str, prompts: int = 1) -> str:
        """One server-sent event (`data: …`), corrected, under the name the client used."""
        head, _, data = event.partition("data: ")
        if not data or data.startswith("[DONE]"):
            return event
        answer = json.loads(data)
        if "model" in answer:
            answer["model"] = model
        told = 1 if answer.get("choices") else prompts  # beside a choice stands the usage of its own prompt
        return f"{head}data: {json.dumps(self.correct(answer, told), ensure_ascii=False)}\n\n"
