"""How much each sampled token counts: importance ratios and what is done with extreme ones. Owns token weights; knows nothing of rewards or losses.

Three policies, all at the completion's own temperature: *behavior* really sampled the token, *current* is being trained, and *proximal* is current as
it stood when the update began (the two differ only where an update takes several steps). SAO knows the first two alone.

Every treatment is a weight w_t of the one policy loss (losses.py), whose gradient is w_t · A_t · ∇ log π(a_t). A clipped objective fits in: where
PPO's min(r·A, clip(r)·A) is not clipped its gradient is r · A · ∇ log π, and 0 where it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from online_sao.algorithm.numerics import compute_dtype

PROBABILITY_MARGIN = 1e-6
"""Least distance of a probability from 0 and 1 in ``bernoulli_kl``: at 0 or 1 itself the smallest rounding would be an infinite divergence."""


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """What a treatment decided for N action tokens. Every token is in exactly one of kept, masked_low, masked_high, non_finite. No gradient flows."""

    weights: Tensor
    """[N] float: the factor w_t of the policy gradient; 0 where the token is not kept."""
    kept: Tensor
    """[N] bool: the token is trained."""
    masked_low: Tensor
    """[N] bool: left out because the token has become too unlikely: its ratio is at or below the lower bound."""
    masked_high: Tensor
    """[N] bool: left out because it has become too likely."""
    non_finite: Tensor
    """[N] bool: a logprob, a difference of two, or the weight itself is NaN or infinite."""


def dis(current_logprobs: Tensor, behavior_logprobs: Tensor, epsilon_low: float, epsilon_high: float) -> TokenWeights:
    """Double-sided importance sampling with a strict mask (DIS, arXiv 2607.07508).

        w_t = r_t   where 1 − epsilon_low < r_t < 1 + epsilon_high
        w_t = 0     elsewhere

    ``current_logprobs[N]``, ``behavior_logprobs[N]`` in nats. The comparison is made on log r_t, in float32 (float64 if given float64), against
    the bounds rounded to the same precision, and both bounds are excluded. ``epsilon_low`` ≥ 1 leaves the lower side open.
    """
    with torch.no_grad():
        log_ratio = _log_ratio(current_logprobs, behavior_logprobs)
        low, high = log_ratio <= _below_one(epsilon_low, log_ratio), log_ratio >= _above_one(epsilon_high, log_ratio)
        return _weighed(log_ratio, low, high)


def ppo_clip(current_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, epsilon_low: float, epsilon_high: float) -> TokenWeights:
    """The gradient of PPO's clipped objective (arXiv 1707.06347), r_t = current / behavior. With two widths: "clip-higher" (arXiv 2503.14476).

        w_t = 0     where A_t > 0 and r_t ≥ 1 + epsilon_high, or A_t < 0 and r_t ≤ 1 − epsilon_low
        w_t = r_t   elsewhere: a ratio that a step would bring back is not bounded on the other side

    All inputs [N]. A ratio that overflows counts as non-finite.
    """
    return decoupled_ppo(current_logprobs, behavior_logprobs, behavior_logprobs, advantages, epsilon_low, epsilon_high)


def decoupled_ppo(
    current_logprobs: Tensor,
    proximal_logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    epsilon_low: float,
    epsilon_high: float,
    lowest: float = 0.0,
    highest: float = math.inf,
) -> TokenWeights:
    """PPO's clip against the proximal policy, weighted by how far that is from behavior: decoupled PPO (arXiv 2110.00641; AReaL, arXiv 2505.24298).

        w_t = k_t · r_t,   k_t = proximal / behavior,  r_t = current / proximal
        w_t = 0            where PPO clips r_t, or k_t is outside [lowest, highest]

    With a bound on both sides it is IcePop (arXiv 2510.18855: M(k) · min(r·A, clip(r)·A)), with an upper one AReaL's cap. All inputs [N]. A token
    that is out on both sides counts as masked_low.
    """
    with torch.no_grad():
        log_k, log_r = _log_ratio(proximal_logprobs, behavior_logprobs), _log_ratio(current_logprobs, proximal_logprobs)
        clipped_low, clipped_high = _further_away(log_r, advantages, epsilon_low, epsilon_high)
        low = (log_k < _bound(math.log(lowest) if lowest > 0 else -math.inf, log_k)) | clipped_low
        high = (log_k > _bound(math.log(highest), log_k)) | clipped_high
        return _weighed(log_k + log_r, low, high & ~low)


def tapered(current_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, epsilon_low: float, epsilon_high: float) -> TokenWeights:
    """The taper of TOPR (arXiv 2503.14286) token by token, and DIS's bounds where a step would lead still further away; r_t = current / behavior.

        w_t = 0             where PPO would clip: A_t > 0 and r_t ≥ 1 + epsilon_high, or A_t < 0 and r_t ≤ 1 − epsilon_low
        w_t = 1             where else A_t > 0
        w_t = min(r_t, 1)   elsewhere

    All inputs [N]. A good token counts in full however unlikely it has become: that is what brings it back. DIS leaves it out, and PPO's clip counts
    it with its small ratio. On-policy all three are the same.
    """
    with torch.no_grad():
        log_ratio = _log_ratio(current_logprobs, behavior_logprobs)
        low, high = _further_away(log_ratio, advantages, epsilon_low, epsilon_high)
        good = advantages > 0
        # A ratio that is not finite stays what it is, so that it is left out and counted.
        log_weight = torch.where(torch.isfinite(log_ratio), torch.where(good, torch.zeros_like(log_ratio), log_ratio.clamp(max=0)), log_ratio)
        return _weighed(log_weight, low, high)


def sequence_rejection(current_logprobs: Tensor, behavior_logprobs: Tensor, trajectory_index: Tensor, limit: float) -> TokenWeights:
    """Whole trajectories in or out, by their drift; inside, the plain ratio (FlashREINFORCE's sequence trust region, its reference implementation).

        w_t = r_t   where the mean of bernoulli_kl(behavior, current) over the trajectory's tokens is at most ``limit``, in nats
        w_t = 0     elsewhere, for all of its tokens

    All inputs [N], whole trajectories; ``trajectory_index`` says whose a token is. Non-finite tokens are left out of the mean. Rejected tokens
    count as masked_low where their ratio is below 1, else as masked_high.
    """
    with torch.no_grad():
        log_ratio = _log_ratio(current_logprobs, behavior_logprobs)
        finite = torch.isfinite(log_ratio)
        divergence = torch.where(finite, bernoulli_kl(behavior_logprobs, current_logprobs).to(log_ratio.dtype), torch.zeros_like(log_ratio))
        _, owner, _ = torch.unique(trajectory_index, return_inverse=True, return_counts=True)
        total = torch.zeros(int(owner.max()) + 1 if len(owner) else 0, dtype=log_ratio.dtype, device=log_ratio.device)
        mean = total.index_add(0, owner, divergence) / total.index_add(0, owner, finite.to(log_ratio.dtype)).clamp(min=1)
        rejected = (mean > limit)[owner]
        return _weighed(log_ratio, rejected & (log_ratio < 0), rejected & (log_ratio >= 0))


def bernoulli_kl(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """KL between "this token" and "another" under two policies: p log(p/q) + (1 − p) log((1 − p)/(1 − q)), in nats; never negative, a lower bound of
    the KL over the vocabulary (Binary-KL of DPPO, "Rethinking the Trust Region in LLM Reinforcement Learning").

    ``logprobs[N]`` log p, ``other_logprobs[N]`` log q. Returns [N]. Probabilities are kept 1e-6 away from 0 and 1; NaN where an input is NaN.
    """
    dtype = compute_dtype(logprobs, other_logprobs)
    p, q = (side.detach().to(dtype).exp().clamp(PROBABILITY_MARGIN, 1 - PROBABILITY_MARGIN) for side in (logprobs, other_logprobs))
    kl = p * (p.log() - q.log()) + (1 - p) * (torch.log1p(-p) - torch.log1p(-q))
    return kl.clamp(min=0)


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


def _log_ratio(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    dtype = compute_dtype(logprobs, other_logprobs)
    return logprobs.detach().to(dtype) - other_logprobs.detach().to(dtype)


def _bound(log: float, like: Tensor) -> Tensor:
    """A bound in the precision of what it is compared with."""
    return torch.tensor(log, dtype=like.dtype, device=like.device)


def _below_one(epsilon: float, like: Tensor) -> Tensor:
    return _bound(math.log1p(-epsilon) if epsilon < 1.0 else -math.inf, like)


def _above_one(epsilon: float, like: Tensor) -> Tensor:
    return _bound(math.log1p(epsilon), like)


def _further_away(log_ratio: Tensor, advantages: Tensor, epsilon_low: float, epsilon_high: float) -> tuple[Tensor, Tensor]:
    """Where PPO clips: at the low bound or beyond it with a negative advantage, at the high one or beyond it with a positive."""
    return (advantages < 0) & (log_ratio <= _below_one(epsilon_low, log_ratio)), (advantages > 0) & (log_ratio >= _above_one(epsilon_high, log_ratio))


def _weighed(log_weight: Tensor, low: Tensor, high: Tensor) -> TokenWeights:
    """exp(log_weight) where neither ``low`` nor ``high``. What is not finite, an overflow included, is neither."""
    finite = torch.isfinite(log_weight)
    kept = finite & ~low & ~high
    # Only kept tokens are exponentiated: exp of a masked one may overflow, and inf · 0 is NaN.
    ratio = torch.exp(torch.where(kept, log_weight, torch.zeros_like(log_weight)))
    finite = finite & torch.isfinite(ratio)
    kept = kept & finite
    weights = torch.where(kept, ratio, torch.zeros_like(ratio))
    return TokenWeights(weights=weights, kept=kept, masked_low=finite & low, masked_high=finite & high, non_finite=~finite)
