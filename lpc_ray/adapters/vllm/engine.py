"""The frozen model in vLLM: generates with or without a learned prefix, and returns the top-k of what it generated.

One engine serves the teacher, the verifier and every prefix at once; concurrent callers share its batches.
"""

import asyncio
import multiprocessing
import os
import uuid
from dataclasses import dataclass, field, replace
from datetime import date as Date
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from lpc_ray.adapters.vllm.ending import end_engine, unlink_queues
from lpc_ray.artifacts.store import read_manifest
from lpc_ray.errors import ArtifactError, ConfigError, DataError
from lpc_ray.model.chat import ChatRenderer, PromptFormat
from lpc_ray.model.identity import ModelIdentity, check_same, model_identity
from lpc_ray.records import Ask, PrefixRef, Reply
from lpc_ray.serving.rewriting import Rewriting


@dataclass(frozen=True)
class EngineSettings:
    """Where and how the engine runs; nothing here changes what it computes, but for `dtype` and how messages are put.

    `thinking` and `date` are those of `lpc_ray.model.chat.PromptFormat`. `kv_cache_gib` and `threads` apply to the CPU
    backend, `gpu_memory_fraction` to CUDA.
    """

    model: str
    revision: str | None = None
    dtype: str = "bfloat16"
    thinking: bool | None = None
    date: Date = PromptFormat().date
    max_model_len: int = 2048
    max_num_seqs: int = 64
    kv_cache_gib: int = 2
    gpu_memory_fraction: float = 0.85
    tensor_parallel: int = 1
    threads: int | None = None
    with_connector: bool = True
    extra: dict[str, Any] = field(default_factory=dict)


class VLLMEngine:
    """An engine in this process's event loop; `start()` takes about 15 s on CPU. `answered`: the replies it has given.

    Raises: ConfigError when vLLM cannot start with these settings.
    """

    def __init__(self, settings: EngineSettings):
        self.settings = settings
        self.answered = 0
        self.identity: ModelIdentity | None = None
        self._engine: Any = None
        self._others: list[Any] = []

    async def start(self) -> "VLLMEngine":
        settings = self.settings
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(settings.kv_cache_gib))
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        if settings.threads is not None:
            cores = sorted(os.sched_getaffinity(0))[: settings.threads]
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
        from vllm.config import KVTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        connector = KVTransferConfig(
            kv_connector="LearnedPrefixConnector",
            kv_connector_module_path="lpc_ray.adapters.vllm.connector",
            kv_role="kv_consumer",
            kv_load_failure_policy="fail",
        )
        arguments = {
            "model": settings.model,
            "revision": settings.revision,
            "dtype": settings.dtype,
            "load_format": "hf",  # the files that the trainer reads, and the identity is of
            "max_model_len": settings.max_model_len,
            "max_num_seqs": settings.max_num_seqs,
            "tensor_parallel_size": settings.tensor_parallel,
            "gpu_memory_utilization": settings.gpu_memory_fraction,
            "enable_prefix_caching": True,
            # A window must hold the whole context, else vLLM refuses it.
            "disable_sliding_window": settings.with_connector,
            "kv_transfer_config": connector if settings.with_connector else None,
            "disable_log_stats": True,
            **(whole_prompts(settings.max_model_len) if current_platform.is_cpu() else {}),
            **settings.extra,
            "trust_remote_code": False,
        }
        self.identity = model_identity(settings.model, settings.revision)
        self._others = multiprocessing.active_children()
        try:
            # In a thread, so that the event loop can stop it meanwhile.
            self._engine = await asyncio.to_thread(AsyncLLM.from_engine_args, AsyncEngineArgs(**arguments))
        except (ValueError, TypeError, OSError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else " ".join(str(error).split())
            raise ConfigError(f"vLLM cannot start with model {settings.model!r}: {reason}") from error
        unlink_queues()
        prompt = PromptFormat(thinking=settings.thinking, date=settings.date)
        self._chat = ChatRenderer(settings.model, settings.revision, prompt)
        self._num_tokens = self._engine.model_config.get_vocab_size()
        return self

    def stop(self) -> None:
        """End vLLM's processes, also while they start; blocks for seconds."""
        end_engine(self._engine, self._others)

    def is_dead(self) -> bool:
        """Whether vLLM's own processes have ended, so that no request can be answered any more."""
        return self._engine.errored

    async def generate(self, asks: list[Ask]) -> list[Reply]:
        """Replies in the order of `asks`; `Reply.too_long` where prefix, prompt and reply do not fit the context.

        Raises: ArtifactError for a prefix of another model or a missing or unfit artifact, ConfigError for a prefix
        when no connector is configured, DataError for an empty prompt.
        """
        prepared = [self._prepare(ask) for ask in asks]
        return list(await asyncio.gather(*(self._answer(ask, ids) for ask, ids in zip(asks, prepared, strict=True))))

    def _prepare(self, ask: Ask) -> list[int]:
        """Token ids of the ask's own prompt; refuses what the engine must not see."""
        if ask.prefix is not None:
            self._check_prefix(ask.prefix)
        ids = list(ask.token_ids) if ask.token_ids else self._chat(ask.messages, True, ask.thinking)
        if (highest := max(ids, default=0)) >= self._num_tokens:
            raise DataError(f"got token {highest} in a prompt, wanted ids below the model's {self._num_tokens}")
        if not ids:
            raise DataError("got a prompt of 0 tokens, wanted at least 1")
        return ids

    async def _answer(self, ask: Ask, ids: list[int]) -> Reply:
        taken = len(ids) + ask.decoding.max_tokens + (ask.prefix.num_tokens if ask.prefix is not None else 0)
        if taken > self.settings.max_model_len:
            return Reply.too_long(len(ids), ask.top_k)
        return await self._run(ask, ids)

    def _check_prefix(self, prefix: PrefixRef) -> None:
        if not self.settings.with_connector:
            raise ConfigError(f"got a request with prefix {prefix.digest}, but this engine has no KV connector")
        assert self.identity is not None
        manifest = read_manifest(Path(prefix.folder))
        if manifest.digest != prefix.digest or manifest.num_tokens != prefix.num_tokens:
            raise ArtifactError(
                f"{prefix.folder}: got digest {manifest.digest} with {manifest.num_tokens} tokens, wanted "
                f"{prefix.digest} with {prefix.num_tokens}"
            )
        check_same(manifest.identity, self.identity, where=prefix.folder)

    async def _run(self, ask: Ask, ids: list[int]) -> Reply:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        extra_args = None
        prompt = TokensPrompt(prompt_token_ids=ids)
        if ask.prefix is not None:
            rewriting = Rewriting((ask.prefix,))
            salt = rewriting.cache_salt
            assert salt is not None, "every prefix has a digest"
            prompt = TokensPrompt(prompt_token_ids=rewriting.token_ids(ids), cache_salt=salt)
            extra_args = {"kv_transfer_params": rewriting.transfer_params}
        sampling = SamplingParams(
            temperature=ask.decoding.temperature,
            max_tokens=ask.decoding.max_tokens,
            seed=ask.decoding.seed,
            logprobs=ask.top_k or None,
            flat_logprobs=ask.top_k > 0,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=extra_args,
        )
        final = None
        async for output in self._engine.generate(prompt, sampling, request_id=uuid.uuid4().hex):
            final = output
        assert final is not None
        completion = final.outputs[0]
        if completion.finish_reason not in ("stop", "length"):
            raise ArtifactError(
                f"vLLM ended a request with {completion.finish_reason!r}"
                + (f" (prefix {ask.prefix.digest} in {ask.prefix.folder})" if ask.prefix else "")
            )
        self.answered += 1
        is_thinking = not ask.token_ids and self._chat.opens_thinking(ask.thinking)
        return replace(_reply(completion, num_prompt_tokens=len(ids), top_k=ask.top_k), is_thinking=is_thinking)


def whole_prompts(max_model_len: int) -> dict[str, Any]:
    """Engine arguments by which no prompt is computed in parts.

    After a part, vLLM turns a seeded request's random generator back by an offset that generators on the CPU do not have, and
    its engine dies.
    """
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(2048, max_model_len)}


def _reply(completion, num_prompt_tokens: int, top_k: int) -> Reply:
    """vLLM's flat log-probs, per position the sampled token first and then the top-k, as arrays."""
    token_ids = tuple(completion.token_ids)
    if top_k == 0:
        return Reply(
            text=completion.text,
            token_ids=token_ids,
            finish_reason=completion.finish_reason,
            num_prompt_tokens=num_prompt_tokens,
            logprobs=np.zeros(0, np.float32),
            topk_ids=np.zeros((len(token_ids), 0), np.int32),
            topk_logprobs=np.zeros((len(token_ids), 0), np.float32),
        )
    flat = completion.logprobs
    starts = np.asarray(flat.start_indices[: len(token_ids)], np.int64)
    all_ids, all_logprobs = np.asarray(flat.token_ids, np.int32), np.asarray(flat.logprobs, np.float32)
    if len(starts) != len(token_ids) or (len(token_ids) and (all_ids[starts] != np.asarray(token_ids)).any()):
        raise DataError("vLLM returned log-probs that do not belong to the tokens it returned")
    columns = starts[:, None] + 1 + np.arange(top_k)[None, :]
    return Reply(
        text=completion.text,
        token_ids=token_ids,
        finish_reason=completion.finish_reason,
        num_prompt_tokens=num_prompt_tokens,
        logprobs=all_logprobs[starts],
        topk_ids=all_ids[columns],
        topk_logprobs=all_logprobs[columns],
    )
