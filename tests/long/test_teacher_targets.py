"""A teacher's stored top-k, from real vLLM, against its targets recomputed by transformers, fp32 on SmolLM2."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lpc_ray.adapters.vllm.engine import EngineSettings, VLLMEngine
from lpc_ray.config.recipe import TrainingRecipe
from lpc_ray.induction.base import plan_units
from lpc_ray.model.chat import PromptFormat
from lpc_ray.model.embedded import fetch_embedded_model
from lpc_ray.prefix.attention import Prefix, attach
from lpc_ray.sources.documents import read_documents
from lpc_ray.traces.inducer import Inducer, InductionTask
from lpc_ray.training.learner import PrefixLearner, teacher_logits
from lpc_ray.training.objectives.base import rows_for
from lpc_ray.training.packing import collate, pack

HANDBOOK = Path(__file__).resolve().parents[2] / "data" / "demo" / "handbook.md"
SETTINGS = {
    "num_chunks": 1,
    "conversations_per_chunk": 4,
    "min_chunk_tokens": 200,
    "max_chunk_tokens": 300,
    "max_question_tokens": 32,
    "max_answer_tokens": 24,
}


@pytest.fixture(scope="module")
def rows():
    """Self-study traces of a real engine."""
    model = str(fetch_embedded_model())
    inducer = Inducer(InductionTask("ss", SETTINGS, 0, model, None, PromptFormat(""), 1024))
    units = plan_units(inducer.family, "ss", read_documents([HANDBOOK]), inducer.text.spans, "A handbook.", 0)
    loop = asyncio.new_event_loop()
    settings = EngineSettings(
        model=model, dtype="float32", max_model_len=1024, kv_cache_gib=1, extra={"enforce_eager": True}
    )
    engine = VLLMEngine(settings)
    loop.run_until_complete(engine.start())
    found = inducer.rows(units, lambda asks: loop.run_until_complete(engine.generate(asks)))
    engine.stop()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.close()
    return [row for row in found if row.drop_reason is None]


@pytest.fixture(scope="module")
def backbone():
    return attach(AutoModelForCausalLM.from_pretrained(str(fetch_embedded_model()), dtype=torch.float32))


def test_the_stored_top_k_is_what_the_worker_recomputes(rows, backbone):
    assert rows
    windows = collate(pack(rows, 320))
    recomputed = torch.log_softmax(teacher_logits(backbone, windows), -1).numpy()
    at_stored = np.take_along_axis(recomputed, windows.topk_ids, axis=1)
    likely = windows.topk_logprobs > -8
    np.testing.assert_allclose(at_stored[likely], windows.topk_logprobs[likely], atol=1e-3)


def test_the_loss_and_its_gradient_are_equal_where_both_cover_the_same_mass(rows, backbone):
    stored = TrainingRecipe(topk_mass=0.5 * float(min(np.exp(row.topk_logprobs).sum(axis=1).min() for row in rows)))
    results = []
    for recipe in (stored, stored.model_copy(update={"teacher_targets": "recomputed"})):
        generator = torch.Generator().manual_seed(0)
        prefix = Prefix(*(torch.randn(30, 8, 3, 64, generator=generator) for _ in range(2)), 1)
        learner = PrefixLearner(backbone, prefix, "kl", recipe)
        loss = learner(collate(pack(rows_for("kl", rows, recipe), 320)))
        loss.backward()
        results.append((loss.item(), prefix.values.grad))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-2, atol=1e-4 * results[0][1].abs().max().item())


def test_traces_hold_the_source_for_the_teacher_alone(rows):
    for row in rows:
        assert len(row.teacher_prompt) > 200 > len(row.token_ids)
        assert row.teacher_tokens > 0
