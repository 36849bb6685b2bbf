"""How far a prefix moves the frozen model's next-token distribution on given texts."""

import numpy as np
import torch
from transformers import PreTrainedModel

from lpc_ray.prefix.attention import Prefix
from lpc_ray.records import TraceRow
from lpc_ray.training.learner import target_logits
from lpc_ray.training.packing import collate, pack


def text_row(prompt: list[int], reply: list[int]) -> TraceRow:
    """A prompt's token ids followed by a reply's, which are the targets; an empty reply makes the last prompt token one."""
    ids = prompt + reply
    is_target = np.arange(len(ids)) >= min(len(prompt), len(ids) - 1)
    return TraceRow(
        id="",
        unit="",
        family="",
        induction_seed=0,
        source_digest="",
        teacher="",
        token_ids=np.asarray(ids, np.int32),
        is_target=is_target,
    )


@torch.inference_mode()
def kl_drift(
    backbone: PreTrainedModel, keys: torch.Tensor, values: torch.Tensor, rows: list[TraceRow], window_tokens: int = 512
) -> tuple[float, int]:
    """Mean KL(bare ‖ with prefix) over the rows' target tokens, in nats, full vocabulary; and how many tokens those are.

    backbone: attached (`lpc_ray.prefix.attention.attach`). keys, values: [L, P, H, D].
    """
    whole, empty = Prefix(keys, values, 0), Prefix(keys[:, :0], values[:, :0], 0)
    device = next(backbone.parameters()).device
    total, count = 0.0, 0
    for window in pack(rows, max(window_tokens, max(len(row.token_ids) for row in rows))):
        windows = collate([window])
        bare, with_prefix = (
            torch.log_softmax(target_logits(backbone, prefix.to(device), windows).float(), dim=-1)
            for prefix in (empty, whole)
        )
        total += float((bare.exp() * (bare - with_prefix)).sum())
        count += bare.shape[0]
    return total / count, count
