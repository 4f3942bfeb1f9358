"""Credit: which action token earned the reward. Owns returns, advantages and the lambda they use; knows nothing of policies, ratios or losses.

All functions take one trajectory of T tokens, action and observation tokens mixed, and look at action tokens only (``loss_mask`` True). ``values[t]``
is V(a_t), read from the hidden state one position before a_t, so that it does not depend on the action. Both ends of an answer, an end-of-turn token
and a length limit, are terminal: the value after the last action token is 0 and nothing is bootstrapped.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from online_sao.algorithm.numerics import compute_dtype


def length_adaptive_lambda(num_action_tokens: int, alpha: float = 1.5) -> float:
    """λ_policy = max(0, 1 − 1/(alpha · l)), l = all action tokens of the trajectory, before any mask (arXiv 2607.07508).

    The sum of the λ-weights over an infinite horizon, 1/(1 − λ), is then alpha · l: credit reaches about as far as the answer is long.

    Raises ValueError if there is no action token.
    """
    if num_action_tokens < 1:
        raise ValueError(f"num_action_tokens must be at least 1, not {num_action_tokens}")
    return max(0.0, 1.0 - 1.0 / (alpha * num_action_tokens))


def skip_observation_gae(rewards: Tensor, values: Tensor, loss_mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimation that steps over observation tokens (arXiv 2607.07508).

    With a_1 … a_n the action tokens in order, whatever stands between them, and V(a_{n+1}) = A(a_{n+1}) = 0:

        δ(a_i) = r(a_i) + gamma · V(a_{i+1}) − V(a_i)
        A(a_i) = δ(a_i) + gamma · lam · A(a_{i+1})

    so the last token of one action links to the first token of the next, and the decay counts action tokens only.

    ``rewards[T]``, ``values[T]``, ``loss_mask[T]`` bool. Returns advantages[T], 0 off the mask, detached. Rewards and values off the mask are not
    read. If any reward or value on the mask is not finite, every advantage that could depend on it is unknown: the whole trajectory gets 0, that
    is, no policy gradient.
    """
    dtype = compute_dtype(rewards, values)
    advantages = torch.zeros(loss_mask.shape, dtype=dtype, device=rewards.device)
    # Python floats: a recursion over single tensor elements is a thousand times slower, and this one carries double precision.
    action_rewards: list[float] = rewards.detach()[loss_mask].tolist()
    action_values: list[float] = values.detach()[loss_mask].tolist()
    if not all(map(math.isfinite, action_rewards + action_values)):
        return advantages
    action_advantages = [0.0] * len(action_rewards)
    next_value = next_advantage = 0.0
    for i in reversed(range(len(action_rewards))):
        delta = action_rewards[i] + gamma * next_value - action_values[i]
        next_advantage = delta + gamma * lam * next_advantage
        next_value = action_values[i]
        action_advantages[i] = next_advantage
    advantages[loss_mask] = torch.tensor(action_advantages, dtype=dtype, device=rewards.device)
    return advantages


def monte_carlo_returns(rewards: Tensor, loss_mask: Tensor, gamma: float = 1.0) -> Tensor:
    """The λ = 1 returns, which are the value targets: G(a_i) = r(a_i) + gamma · G(a_{i+1}), G after the last action token 0.

    ``rewards[T]``, ``loss_mask[T]`` bool. Returns returns[T], 0 off the mask, detached. A return that would include a non-finite reward is NaN:
    any number in its place would be taught to the value model as truth. ``value_loss`` and ``explained_variance`` leave such tokens out.
    """
    dtype = compute_dtype(rewards)
    returns = torch.zeros(loss_mask.shape, dtype=dtype, device=rewards.device)
    action_returns: list[float] = rewards.detach()[loss_mask].tolist()
    following = 0.0
    for i in reversed(range(len(action_returns))):
        following = action_returns[i] + gamma * following
        action_returns[i] = following = following if math.isfinite(following) else math.nan
    returns[loss_mask] = torch.tensor(action_returns, dtype=dtype, device=rewards.device)
    return returns
