"""What an update reports about itself. Owns the estimators behind the metrics; nothing here carries a gradient or changes a step.

Every result is finite, so that it can be stored and compared: an average over nothing is 0. Log-ratios are current − behavior, in nats.
"""

from __future__ import annotations

from typing import NamedTuple, TypedDict

import torch
from torch import Tensor

from online_sao.algorithm.numerics import TemperedLogProbs, compute_dtype

LOG_RATIO_LIMIT = 60.0
"""Largest log-ratio that is exponentiated, in nats: e^60 is absurd as a ratio, yet sums of it stay finite in float32."""

RATIO_EDGES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.01, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)
"""Inner bin edges of the ratio histogram. Fixed, so that histograms of microbatches and of updates can be added up and compared."""


class RatioHistogram(TypedDict):
    """``counts[i]`` ratios in (edges[i−1], edges[i]]; the first and last bins are open. JSON-ready."""

    edges: list[float]
    counts: list[int]
    non_finite: int


class LogRatioGap(NamedTuple):
    """Mean |log ratio| of tokens that were masked, and of tokens that were trained. 0-dim tensors."""

    masked: Tensor
    unmasked: Tensor


def kl_k1(log_ratio: Tensor) -> Tensor:
    """KL(behavior ‖ current) by the k1 estimator: mean(−log r), tokens sampled from behavior. Unbiased; a single batch may give a negative number.

    ``log_ratio[N]``. Non-finite entries are left out. Returns a 0-dim tensor, in nats a token.
    """
    return _mean(-_finite(log_ratio))


def kl_k3(log_ratio: Tensor) -> Tensor:
    """KL(behavior ‖ current) by the k3 estimator: mean(r − 1 − log r), tokens sampled from behavior. Unbiased, never negative, less variance.

    ``log_ratio[N]``. Non-finite entries are left out; ratios are cut at e^60. Returns a 0-dim tensor, in nats a token.
    """
    log_ratio = _finite(log_ratio)
    # expm1: near r = 1, where most tokens are, exp(x) − 1 − x loses all its digits in float32.
    return _mean(torch.expm1(log_ratio.clamp(max=LOG_RATIO_LIMIT)) - log_ratio.clamp(max=LOG_RATIO_LIMIT))


def entropy(current: TemperedLogProbs) -> Tensor:
    """Entropy over the full vocabulary, in nats: [N], in [0, log V]. A row that is not valid counts as 0: it pulls the mean towards collapse, the
    side on which a gate stops."""
    logprobs = current.logprobs.detach()
    entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
    return torch.where(current.valid, entropies, torch.zeros_like(entropies))


def explained_variance(returns: Tensor, values: Tensor) -> Tensor:
    """1 − Var(returns − values) / Var(returns): 1 a perfect critic, 0 one no better than a constant, negative one worse than a constant.

    ``returns[N]``, ``values[N]``: the values must be from before the update, and N should span 256 trajectories or more. Pairs with a non-finite
    member are left out. Where the returns have no variance (or fewer than two are left) there is nothing to explain and the result is 0.
    Returns a 0-dim tensor. A constant error of the critic does not show here: see the value loss.
    """
    # Two nearly equal variances: float32 would decide the sign by rounding.
    returns, values = returns.detach().to(torch.float64), values.detach().to(torch.float64)
    usable = torch.isfinite(returns) & torch.isfinite(values)
    returns, values = returns[usable], values[usable]
    # Compared by max and min too: the variance of equal numbers may round to something above 0.
    if returns.numel() < 2 or bool(returns.max() == returns.min()) or bool(returns.var(correction=0) == 0):
        return torch.zeros((), dtype=torch.float64, device=returns.device)
    return 1.0 - (returns - values).var(correction=0) / returns.var(correction=0)


def log_ratio_gap(log_ratio: Tensor, kept: Tensor) -> LogRatioGap:
    """How far the masked tokens are from the policy, beside the trained ones: a low masked fraction alone proves nothing.

    ``log_ratio[N]``, ``kept[N]`` bool. Non-finite log-ratios are left out of both means.
    """
    distance = log_ratio.detach().to(compute_dtype(log_ratio)).abs()
    finite = torch.isfinite(distance)
    return LogRatioGap(masked=_mean(distance[finite & ~kept]), unmasked=_mean(distance[finite & kept]))


def ratio_histogram(log_ratio: Tensor) -> RatioHistogram:
    """Counts of r = exp(log_ratio) between RATIO_EDGES. ``log_ratio[N]``; non-finite ones are counted apart."""
    values = _finite(log_ratio)
    edges = torch.tensor(RATIO_EDGES, dtype=torch.float64).log().to(dtype=values.dtype, device=values.device)
    counts = torch.bincount(torch.bucketize(values, edges), minlength=len(RATIO_EDGES) + 1)
    return RatioHistogram(edges=list(RATIO_EDGES), counts=counts.tolist(), non_finite=log_ratio.numel() - values.numel())


def count_non_finite(*tensors: Tensor) -> int:
    """Number of positions at which at least one of ``tensors`` (all of one shape) is NaN or infinite: what the losses left out."""
    broken = torch.zeros_like(tensors[0], dtype=torch.bool)
    for tensor in tensors:
        broken = broken | ~torch.isfinite(tensor.detach())
    return int(broken.sum())


def _finite(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().to(compute_dtype(tensor))
    return tensor[torch.isfinite(tensor)]


def _mean(tensor: Tensor) -> Tensor:
    return tensor.mean() if tensor.numel() else torch.zeros((), dtype=tensor.dtype, device=tensor.device)
