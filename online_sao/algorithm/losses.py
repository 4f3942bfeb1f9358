"""The three losses of an update. Owns what is minimised and over how many tokens it is averaged; knows nothing of how weights or advantages arose.

Every loss is a sum over the tokens given, divided by ``num_action_tokens``: N of the *whole* batch, over all microbatches and ranks, with masked
and non-finite tokens included. Losses of microbatches therefore add up to the loss of the batch, and the more is rejected, the smaller the step.

A token that is not finite adds 0 to the loss, and its gradient *with respect to the inputs of these functions* is 0. Where the non-finite number
came out of the network itself, the chain rule can still make NaN upstream (0 · NaN): whoever steps the optimiser must look at the gradient norm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from online_sao.algorithm.numerics import TemperedLogProbs, compute_dtype


def policy_loss(current_logprobs: Tensor, weights: Tensor, advantages: Tensor, num_action_tokens: int) -> Tensor:
    """− Σ_t stopgrad(w_t · A_t) · current_logprob_t / N (SAO, arXiv 2607.07508).

    ``current_logprobs[N]`` with gradient; ``weights[N]`` (see importance.py) and ``advantages[N]`` are constants. Returns a 0-dim tensor; its
    gradient is the importance-weighted policy gradient, its value has no meaning of its own.

    Raises ValueError if ``num_action_tokens`` < 1.
    """
    _check_count(num_action_tokens)
    dtype = compute_dtype(current_logprobs, weights, advantages)
    current_logprobs = current_logprobs.to(dtype)
    coefficients = weights.detach().to(dtype) * advantages.detach().to(dtype)
    with torch.no_grad():
        finite = torch.isfinite(coefficients * current_logprobs)
    return -(_where(finite, coefficients) * _where(finite, current_logprobs)).sum() / num_action_tokens


def value_loss(values: Tensor, value_targets: Tensor, num_action_tokens: int) -> Tensor:
    """Σ_t (V(a_t) − target_t)² / N (arXiv 2607.07508): no clipping, no importance weight, no DIS mask.

    ``values[N]`` with gradient; ``value_targets[N]`` constants, the λ = 1 returns fixed before the K value updates. Returns a 0-dim tensor.

    Raises ValueError if ``num_action_tokens`` < 1.
    """
    _check_count(num_action_tokens)
    dtype = compute_dtype(values, value_targets)
    values, value_targets = values.to(dtype), value_targets.detach().to(dtype)
    with torch.no_grad():
        finite = torch.isfinite((values - value_targets).square())
    return (_where(finite, values) - _where(finite, value_targets)).square().sum() / num_action_tokens


def anchor_loss(current: TemperedLogProbs, base: TemperedLogProbs, num_action_tokens: int) -> Tensor:
    """Σ_t KL(current ‖ base)_t / N, over the full vocabulary, in nats a token. Our extension to SAO; the coefficient β is the caller's.

        KL_t = Σ_v p(v) · (log p(v) − log q(v)),   p = softmax(current logits / τ_t),  q = softmax(base logits / τ_t)

    ``current`` with gradient, ``base`` a constant, both at the temperatures the tokens were sampled at. Unweighted: a token that DIS masks is
    anchored like any other. Returns a 0-dim tensor ≥ 0 up to rounding.

    Raises ValueError if ``num_action_tokens`` < 1.
    """
    _check_count(num_action_tokens)
    kl = (current.logprobs.exp() * (current.logprobs - base.logprobs.detach())).sum(dim=-1)
    return _where(current.valid & base.valid, kl).sum() / num_action_tokens


def _where(condition: Tensor, tensor: Tensor) -> Tensor:
    return torch.where(condition, tensor, torch.zeros_like(tensor))


def _check_count(num_action_tokens: int) -> None:
    if num_action_tokens < 1:
        raise ValueError(f"num_action_tokens must be the number of action tokens of the whole batch, at least 1, not {num_action_tokens}")
