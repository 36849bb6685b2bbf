"""Attention over a prefix and a prompt of one layer: three ways to the same numbers, and which is fastest where.

Shape letters: B rows, H KV heads, R queries of one KV head's group (its G query heads after one another, each of T tokens),
P prefix tokens, T prompt tokens, D head dim.
"""

from typing import Any

import torch
from torch import nn

FLASH_SCORES = 4_000_000
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def prefix_and_prompt(
    queries: torch.Tensor,
    prefix: tuple[torch.Tensor, torch.Tensor],
    prompt: tuple[torch.Tensor, torch.Tensor],
    bias: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """queries [B, H, R, D]; prefix: keys and values [B, H, P, D], which every query sees; prompt: those [B, H, T, D].

    bias: [B, 1, T, T] in the queries' dtype, added to the scores between prompt tokens. Returns [B, H, R, D].
    On a CPU in fp32, and for more than `FLASH_SCORES` scores a head, no scores are kept for the backward pass.
    """
    if queries.is_cuda and softcap is None:
        return _on_cuda(queries, prefix, prompt, bias, scale)
    scores = queries.shape[2] * (prefix[0].shape[2] + prompt[0].shape[2])
    has_prefix = prefix[0].shape[2] > 0
    if has_prefix and softcap is None and (queries.dtype == torch.float32 or scores > FLASH_SCORES):
        group = queries.shape[2] // prompt[0].shape[2]
        output: Any = _Merged.apply(queries, *prefix, *prompt, bias.repeat(1, 1, group, 1), scale)
        return output
    return _plain(queries, prefix, prompt, bias, scale, softcap)


def _plain(
    queries: torch.Tensor,
    prefix: tuple[torch.Tensor, torch.Tensor],
    prompt: tuple[torch.Tensor, torch.Tensor],
    bias: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """One softmax over all keys, in the queries' dtype."""
    batch, heads, rows, _ = queries.shape
    length, num_prefix = bias.shape[-1], prefix[0].shape[2]
    keys, values = (torch.cat(pair, dim=2) for pair in zip(prefix, prompt, strict=True))
    scores = (queries * scale) @ keys.transpose(2, 3)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    by_token = scores.view(batch, heads, rows // length, length, num_prefix + length)
    by_token[..., num_prefix:].add_(bias[:, :, None])
    return torch.softmax(scores, dim=-1) @ values


def _on_cuda(
    queries: torch.Tensor,
    prefix: tuple[torch.Tensor, torch.Tensor],
    prompt: tuple[torch.Tensor, torch.Tensor],
    bias: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    keys, values = (torch.cat(pair, dim=2) for pair in zip(prefix, prompt, strict=True))
    mask = nn.functional.pad(bias, (prefix[0].shape[2], 0)).repeat(1, 1, queries.shape[2] // bias.shape[-1], 1)
    return nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)


class _Merged(torch.autograd.Function):
    """Flash attention over the two parts by themselves, merged by their log-sum-exps; the prefix part needs no mask.

    Given the merged output and log-sum-exp, each part's own backward pass yields its share of the gradients.
    Source: FlashAttention, arXiv 2205.14135, section 3.1 and algorithm 4; merged parts: Ring Attention, arXiv 2310.01889,
    section 3.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        queries, prefix_keys, prefix_values, keys, values, bias, scale = inputs
        before, before_lse = _flash(queries, prefix_keys, prefix_values, scale=scale)
        own, own_lse = _flash(queries, keys, values, attn_mask=bias, scale=scale)
        lse = torch.logaddexp(before_lse, own_lse)
        share = torch.exp(before_lse - lse)[..., None].to(own.dtype)
        output = torch.lerp(own, before, share)
        ctx.save_for_backward(queries, prefix_keys, prefix_values, keys, values, bias, output, lse)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        queries, prefix_keys, prefix_values, keys, values, bias, output, lse = ctx.saved_tensors
        known = (output, lse, 0.0, False)
        gradient = gradients[0].contiguous()
        of_queries, *of_prefix = _flash_backward(gradient, queries, prefix_keys, prefix_values, *known, scale=ctx.scale)
        own = _flash_backward(gradient, queries, keys, values, *known, attn_mask=bias, scale=ctx.scale)
        return of_queries + own[0], *of_prefix, *own[1:], None, None
