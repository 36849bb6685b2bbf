"""OpenAI's requests with prefixes before vLLM's own serving objects: rendered, given placeholders, and answers put right."""

from collections.abc import AsyncIterator, Iterable
from copy import deepcopy
from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.v1.engine.exceptions import EngineDeadError

from lpc_ray.adapters.vllm.as_trained import as_trained
from lpc_ray.errors import LPCError
from lpc_ray.serving.refusal import Refusal
from lpc_ray.serving.rewriting import Rewriting
from lpc_ray.serving.sizing import placeholder_of

REQUESTS: dict[str, Any] = {"chat": ChatCompletionRequest, "completions": CompletionRequest}


class Front:
    """What one engine's requests pass through, in its own process.

    engine: vLLM's engine client. chat, completions: its serving objects. name: what vLLM calls the model. requests: the
    types of what these objects take.
    """

    def __init__(self, engine: Any, chat: Any, completions: Any, name: str, requests: dict[str, Any] = REQUESTS):
        self._name, self._chat, self._completions, self._requests = name, chat, completions, requests
        config = engine.vllm_config
        self.vocab_size: int = config.model_config.get_vocab_size()
        self.context_tokens: int = config.model_config.max_model_len
        self.block_size: int = config.cache_config.block_size
        tokenizer = engine.get_tokenizer()
        control = [token for token, text in tokenizer.added_tokens_decoder.items() if text.special]
        self.placeholder = placeholder_of(control, {tokenizer.eos_token_id}, self.vocab_size)

    async def prepare(self, kind: str, body: dict[str, Any], rewriting: Rewriting) -> tuple[Any, int]:
        """vLLM's request of `kind` (chat, completions) with the prefixes before its prompts, and how many prompts it has.

        Raises: Refusal 400 for a request that vLLM, the model or the room beside the prefixes does not take.
        """
        try:
            named = {**body, "model": self._name}
            request, copy = self._requests[kind](**deepcopy(named)), self._requests[kind](**named)
            return request, await self._rewrite(kind, request, copy, rewriting)
        except (LPCError, EngineDeadError):
            raise
        except Exception as error:  # nothing but the request has been looked at yet
            raise Refusal(400, "invalid_request", _first_line(error)) from error

    async def _rewrite(self, kind: str, request: Any, copy: Any, rewriting: Rewriting) -> int:
        """Put placeholders before the prompts, as vLLM renders them from the copy; returns the number of prompts."""
        request.cache_salt = rewriting.cache_salt
        request.kv_transfer_params = transfer = rewriting.transfer_params
        if kind == "chat":
            renderer = as_trained(self._chat.online_renderer, [request, copy], rewriting.prefixes)
            rendered = await renderer.render_chat(copy)
            inputs = rendered[1] if isinstance(rendered, tuple) else rendered
        else:
            inputs = await self._completions.online_renderer.render_completion(copy)
        if not isinstance(inputs, list):
            raise refusal_by(inputs)
        prompts = [list(one["prompt_token_ids"]) for one in inputs]
        self._check_vocabulary("prompt", [token for prompt in prompts for token in prompt])
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            self._check_vocabulary(name, map(int, getattr(request, name, None) or ()))
        asked = request.max_tokens if kind == "completions" else request.max_completion_tokens or request.max_tokens
        for prompt in prompts:
            rewriting.check_room(len(prompt), asked, self.context_tokens)
        request.truncate_prompt_tokens = None
        if kind == "completions":
            request.prompt = [rewriting.token_ids(prompt) for prompt in prompts]
        else:
            request.kv_transfer_params = {**(transfer or {}), "prompt_token_ids": rewriting.token_ids(prompts[0])}
        return len(prompts)

    def _check_vocabulary(self, field: str, token_ids: Iterable[int]) -> None:
        """Raises: Refusal 400 for an id that the model has no row for, which would end the engine."""
        odd = next((token for token in token_ids if not 0 <= token < self.vocab_size), None)
        if odd is not None:
            raise Refusal(
                400, "no_such_token", f"{field}: got token {odd}, wanted 0 to {self.vocab_size - 1}", param=field
            )


async def corrected(events: AsyncIterator[Any], rewriting: Rewriting, model: str, prompts: int) -> AsyncIterator[str]:
    """The events of a stream of vLLM's, single or in lists, as the client of `model` is to see them. Raises: Refusal."""
    async for batch in events:
        for event in batch if isinstance(batch, list) else [batch]:
            if isinstance(event, ErrorResponse):
                raise refusal_by(event)
            yield rewriting.correct_event(event, model, prompts)


def corrected_answer(answer: Any, rewriting: Rewriting, model: str, prompts: int) -> dict[str, Any]:
    """vLLM's whole answer as the client of `model` is to see it. Raises: Refusal when it is none."""
    if isinstance(answer, ErrorResponse):
        raise refusal_by(answer)
    return {**rewriting.correct(answer.model_dump(mode="json"), prompts), "model": model}


def refusal_by(response: ErrorResponse) -> Refusal:
    """vLLM's own refusal of a request, as ours."""
    error = response.error
    return Refusal(int(error.code), "invalid_request", error.message, error.param)


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
