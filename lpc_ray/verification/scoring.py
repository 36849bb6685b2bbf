"""Verifiers as scorers: what best-of-N induction (`bo`) may choose its candidates by."""

from lpc_ray.induction.bo import Candidate
from lpc_ray.model.thinking import said
from lpc_ray.verification.short_answer import is_answered


def short_answer(candidate: Candidate) -> float:
    """1 when an accepted answer occurs in the reply, else 0."""
    return float(is_answered(said(candidate.reply), candidate.references))
