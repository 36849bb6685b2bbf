#!/usr/bin/env python
"""What an optimizer step costs, as ratios of one run on one machine; nothing else may run on its cores.

`python -m tests.benchmarks.training [--json FILE] [--dtypes float32 bfloat16]`. Turns alternate and figures are medians of
their rounds; the first round warms up and is dropped. The rival is PEFT's CARTRIDGE tuner at the same dtype, under the
faster of its attentions, on the same traces, its batches padded as they come or sorted by length.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from lpc_ray.config.recipe import TrainingRecipe
from lpc_ray.model.embedded import fetch_embedded_model
from lpc_ray.prefix.attention import Prefix, attach
from lpc_ray.records import TraceRow
from lpc_ray.training.learner import PrefixLearner
from lpc_ray.training.loop import micro_batches
from lpc_ray.training.packing import batches
from lpc_ray.training.stepper import PlainStepper

PREFIX_TOKENS = 128
STEPS = 4
LENGTHS, TARGETS = (24, 120), 0.3


def traces(count: int, vocabulary: int) -> list[TraceRow]:
    """Random traces with the demo's lengths: prompts of questions and short answers."""
    numbers, rows = np.random.default_rng(0), []
    for number in range(count):
        length = int(numbers.integers(*LENGTHS))
        ids = numbers.integers(10, vocabulary, length).astype(np.int32)
        is_target = np.arange(length) >= length * (1 - TARGETS)
        rows.append(TraceRow(f"r{number}", f"u{number}", "curated", 0, "s", "t", ids, is_target))
    return rows


class Ours:
    def __init__(self, model: str, dtype: torch.dtype, recipe: TrainingRecipe, prefix: torch.Tensor):
        backbone = attach(AutoModelForCausalLM.from_pretrained(model, dtype=dtype))
        self._stepper = PlainStepper(PrefixLearner(backbone, Prefix(*prefix, 1), "ntp", recipe), recipe)
        self._recipe = recipe

    def step(self, chosen: list[TraceRow]) -> None:
        targets = sum(int(row.is_target.sum()) for row in chosen)
        self._stepper.step(micro_batches(chosen, self._recipe), targets, 1.0)


class Peft:
    """PEFT's tuner as its documentation uses it: padded batches, labels, AdamW on what is trainable."""

    def __init__(self, model: str, dtype: torch.dtype, attention: str, recipe: TrainingRecipe, prefix: torch.Tensor):
        import peft

        base = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation=attention)
        config = peft.CartridgeConfig(task_type="CAUSAL_LM", num_virtual_tokens=prefix.shape[2], num_frozen_tokens=1)
        self._model = peft.get_peft_model(base, config)
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._optimizer, self._trained = torch.optim.AdamW(trained, lr=recipe.lr, weight_decay=0.0), trained

    def step(self, chosen: list[TraceRow]) -> None:
        width = max(len(row.token_ids) for row in chosen)
        ids, mask = torch.zeros(2, len(chosen), width, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        for number, row in enumerate(chosen):
            own = torch.from_numpy(row.token_ids).long()
            ids[number, : len(own)], mask[number, : len(own)] = own, 1
            labels[number, : len(own)] = own.where(torch.from_numpy(row.is_target), torch.tensor(-100))
        self._optimizer.zero_grad(set_to_none=True)
        self._model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(self._trained, 1.0)
        self._optimizer.step()


class Floor:
    """The matrix products of a step and nothing else: forward, and backward to the inputs."""

    def __init__(self, model: str, dtype: torch.dtype):
        backbone = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
        self._weights = [layer.weight.detach() for layer in backbone.modules() if isinstance(layer, torch.nn.Linear)]
        self._head = backbone.get_output_embeddings().weight

    def step(self, chosen: list[TraceRow]) -> None:
        tokens, targets = sum(len(row.token_ids) for row in chosen), sum(int(row.is_target.sum()) for row in chosen)
        for weight in self._weights:
            rows = targets if weight.data_ptr() == self._head.data_ptr() else tokens
            states = torch.ones(rows, weight.shape[1], dtype=weight.dtype)
            states @ weight.T @ weight


def in_turns(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(found) for name, found in seconds.items()}


def compare(model: str, dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """Ratios of token rates, and this trainer's rate in tokens per second."""
    recipe = TrainingRecipe()
    config = AutoModelForCausalLM.from_pretrained(model).config
    rows = traces(64, config.vocab_size)
    shape = (config.num_hidden_layers, PREFIX_TOKENS, config.num_key_value_heads, config.head_dim)
    prefix = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    drawn = batches(rows, recipe.batch_tokens, 0)
    by_step = [next(drawn) for _ in range(STEPS)]
    by_length = _by_length([row for chosen in by_step for row in chosen], recipe.batch_tokens)
    tokens = {"sorted": _tokens(by_length), "padded": _tokens(by_step)}
    ours, floor = Ours(model, dtype, recipe, prefix), Floor(model, dtype)
    ways: dict[str, Callable[[], None]] = {
        "ours": lambda: _each(ours, by_step),
        "floor": lambda: _each(floor, by_step),
    }
    for attention in ("eager", "sdpa"):
        rival = Peft(model, dtype, attention, recipe, prefix)
        ways[f"padded {attention}"] = lambda rival=rival: _each(rival, by_step)
        ways[f"sorted {attention}"] = lambda rival=rival: _each(rival, by_length)
    seconds = in_turns(ways, rounds)
    rate = tokens["padded"] / seconds["ours"]
    found = {"tokens_per_second": rate, "step_vs_floor": seconds["floor"] / seconds["ours"]}
    for order, count in tokens.items():
        best = count / min(seconds[f"{order} eager"], seconds[f"{order} sdpa"])
        found[f"step_vs_peft.{order}"] = rate / best
    return found


def _by_length(rows: list[TraceRow], batch_tokens: int) -> list[list[TraceRow]]:
    """The rows in the order of their lengths, cut into batches that fit `batch_tokens`."""
    found: list[list[TraceRow]] = [[]]
    for row in sorted(rows, key=lambda row: len(row.token_ids)):
        if _tokens([[*found[-1], row]]) > batch_tokens:
            found.append([])
        found[-1].append(row)
    return found


def _each(way, by_step: list[list[TraceRow]]) -> None:
    for chosen in by_step:
        way.step(chosen)


def _tokens(by_step: list[list[TraceRow]]) -> int:
    return sum(len(row.token_ids) for chosen in by_step for row in chosen)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.training", description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    options = parser.parse_args()
    model, figures = str(fetch_embedded_model()), {}
    for dtype in options.dtypes:
        for name, value in compare(model, getattr(torch, dtype), options.rounds).items():
            what, _, order = name.partition(".")
            figures[".".join(filter(None, (what, {"float32": "fp32", "bfloat16": "bf16"}[dtype], order)))] = value
    for name, value in figures.items():
        Console().print(f"{name:32} {value:8.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
