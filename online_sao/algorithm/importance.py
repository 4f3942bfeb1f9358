"""How much each sampled token counts: importance ratios and what is done with extreme ones. Owns token weights; knows nothing of rewards or losses.

The ratio is r_t = exp(current_logprob_t − behavior_logprob_t): the policy being trained against the policy that really sampled the token, both at
the completion's own temperature. There is no third ("old") policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from online_sao.algorithm.numerics import compute_dtype


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """What a treatment decided for N action tokens. Every token is in exactly one of kept, masked_low, masked_high, non_finite. No gradient flows."""

    weights: Tensor
    """[N] float: the factor w_t of the policy gradient; 0 where the token is not kept."""
    kept: Tensor
    """[N] bool: the token is trained."""
    masked_low: Tensor
    """[N] bool: ratio at or below the lower bound."""
    masked_high: Tensor
    """[N] bool: ratio at or above the upper bound."""
    non_finite: Tensor
    """[N] bool: one of the two logprobs, or their difference, is NaN or infinite."""


def dis(current_logprobs: Tensor, behavior_logprobs: Tensor, epsilon_low: float, epsilon_high: float) -> TokenWeights:
    """Double-sided importance sampling with a strict mask (DIS, arXiv 2607.07508).

        w_t = r_t   where 1 − epsilon_low < r_t < 1 + epsilon_high
        w_t = 0     elsewhere

    ``current_logprobs[N]``, ``behavior_logprobs[N]`` in nats. The comparison is made on log r_t, in float32 (float64 if given float64), against
    the bounds rounded to the same precision, and both bounds are excluded. ``epsilon_low`` ≥ 1 leaves the lower side open.
    """
    dtype = compute_dtype(current_logprobs, behavior_logprobs)
    with torch.no_grad():
        log_ratio = current_logprobs.detach().to(dtype) - behavior_logprobs.detach().to(dtype)
        finite = torch.isfinite(log_ratio)
        lower = torch.tensor(math.log1p(-epsilon_low) if epsilon_low < 1.0 else -math.inf, dtype=dtype, device=log_ratio.device)
        upper = torch.tensor(math.log1p(epsilon_high), dtype=dtype, device=log_ratio.device)
        masked_low = finite & (log_ratio <= lower)
        masked_high = finite & (log_ratio >= upper)
        kept = finite & ~masked_low & ~masked_high
        # Only kept tokens are exponentiated: exp of a masked one may overflow, and inf · 0 is NaN.
        ratio = torch.exp(torch.where(kept, log_ratio, torch.zeros_like(log_ratio)))
        weights = torch.where(kept, ratio, torch.zeros_like(ratio))
    return TokenWeights(weights=weights, kept=kept, masked_low=masked_low, masked_high=masked_high, non_finite=~finite)


def effective_sample_fraction(log_ratio: Tensor, valid: Tensor) -> Tensor:
    """Effective sample size as a fraction of the sample: (Σ r)² / (n · Σ r²), over the n tokens that are ``valid`` and finite, before any masking.

    ``log_ratio[N]``, ``valid[N]`` bool. Returns a 0-dim tensor in [1/n, 1]: 1 when all ratios are equal, 1/n when one token carries all the
    weight, and 0 when there is no usable token. Computed on r / max r (the fraction does not change), so that no ratio overflows.
    """
    log_ratio = log_ratio.detach().to(compute_dtype(log_ratio))
    log_ratio = log_ratio[valid & torch.isfinite(log_ratio)]
    if log_ratio.numel() == 0:
        return torch.zeros((), dtype=log_ratio.dtype, device=log_ratio.device)
    ratio = torch.exp(log_ratio - log_ratio.max())
    return ratio.sum().square() / (ratio.numel() * ratio.square().sum())
