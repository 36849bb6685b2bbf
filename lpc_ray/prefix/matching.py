"""Fewer keys of a cache, and values solved so that attention over them gives what the whole cache gives.

Shape letters: N source tokens, R queries of one KV head's group; else as in `attention`.
"""

import torch
from transformers import PreTrainedModel

from lpc_ray.prefix.attention import SeenQueries, prefix_arguments


@torch.no_grad()
def queries_behind(
    model: PreTrainedModel, keys: torch.Tensor, values: torch.Tensor, token_ids: list[int]
) -> dict[int, SeenQueries]:
    """Each layer's queries of a forward over `token_ids` at positions N…, behind a cache of keys and values [L, N, H, D]."""
    seen: dict[int, SeenQueries] = {}
    ids = torch.tensor([token_ids], device=model.device)
    model.base_model(
        input_ids=ids,
        position_ids=torch.arange(len(token_ids), device=model.device)[None] + keys.shape[1],
        use_cache=False,
        lpc_seen=seen,
        **prefix_arguments(keys, values, torch.zeros_like(ids)),
    )
    return seen


def match_layer(
    keys_HND: torch.Tensor, values_HND: torch.Tensor, seen: SeenQueries, num_tokens: int, ridge: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kept keys, unturned, and the solved values of one layer: two fp32 [H, P, D]."""
    scores_HRN = attention_scores(keys_HND, seen)
    weights_HRN = scores_HRN.softmax(dim=-1)
    mass_HN = weights_HRN.sum(dim=1)
    mass_HN[:, 0] = torch.inf  # the attention sink stays, and stays first
    kept_HP = mass_HN.topk(num_tokens, dim=1).indices.sort(dim=1).values
    kept_HPD = kept_HP[:, :, None].expand(-1, -1, keys_HND.shape[-1])
    kept_scores_HRP = scores_HRN.gather(2, kept_HP[:, None].expand(-1, scores_HRN.shape[1], -1))
    values = match_values(
        kept_scores_HRP.softmax(dim=-1), weights_HRN @ values_HND, values_HND.gather(1, kept_HPD), ridge
    )
    return keys_HND.gather(1, kept_HPD), values


def attention_scores(keys_HND: torch.Tensor, seen: SeenQueries) -> torch.Tensor:
    """fp32 scores [H, R, N] of all queries of each KV head's group, before the softmax."""
    heads, _, head_dim = keys_HND.shape
    queries_HRD = seen.queries[0].float().reshape(heads, -1, head_dim)
    scores = queries_HRD @ keys_HND.transpose(1, 2) * seen.scale
    return scores if seen.softcap is None else seen.softcap * torch.tanh(scores / seen.softcap)


def match_values(
    weights_HRP: torch.Tensor, wanted_HRD: torch.Tensor, own_HPD: torch.Tensor, ridge: float
) -> torch.Tensor:
    """Values V with ‖weights · V − wanted‖² + λ‖V − own‖² least, λ = ridge · the mean diagonal of weightsᵀ weights.

    Where the tokens' own values already give what is wanted, they are returned as they are.
    """
    gram_HPP = weights_HRP.transpose(1, 2) @ weights_HRP
    diagonal = gram_HPP.diagonal(dim1=1, dim2=2)
    lifted = gram_HPP + torch.diag_embed((ridge * diagonal.mean(dim=1, keepdim=True)).expand_as(diagonal))
    missing_HRD = wanted_HRD - weights_HRP @ own_HPD
    return own_HPD + torch.linalg.solve(lifted, weights_HRP.transpose(1, 2) @ missing_HRD)
