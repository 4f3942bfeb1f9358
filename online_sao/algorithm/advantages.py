"""Credit: which action token earned the reward. Owns returns, advantages and the lambda they use; knows nothing of policies, ratios or losses.

All functions take one trajectory of T tokens, action and observation tokens mixed, and look at action tokens only (``loss_mask`` True). ``values[t]``
is V(a_t), read from the hidden state one position before a_t, so that it does not depend on the action. Both ends of an answer, an end-of-turn token
and a length limit, are terminal: the value after the last action token is 0 and nothing is bootstrapped. Those that compare trajectories
(``group_normalised``, ``batch_centred``) take one return of each.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from online_sao.algorithm.numerics import compute_dtype

GROUP_EPSILON = 1e-6
"""Added to the spread of a group's returns, in units of reward."""


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


def every_token_gae(rewards: Tensor, values: Tensor, loss_mask: Tensor, gamma: float, alpha: float) -> Tensor:
    """GAE that does not skip: the chain runs from the first action token to the last over every token in between, observations too, and decays along
    them; λ adapts to the length of that chain. ``values[t]`` must have been read at observation tokens too.

    Otherwise as ``skip_observation_gae``, which it equals where there is no observation. Raises ValueError if there is no action token.
    """
    actions = loss_mask.nonzero().squeeze(-1)
    if not len(actions):
        raise ValueError("a trajectory needs an action token")
    chain = torch.zeros_like(loss_mask)
    chain[int(actions[0]) : int(actions[-1]) + 1] = True
    advantages = skip_observation_gae(rewards, values, chain, gamma, length_adaptive_lambda(int(chain.sum()), alpha))
    return torch.where(loss_mask, advantages, torch.zeros_like(advantages))


def step_index(loss_mask: Tensor) -> Tensor:
    """Which step (action, turn) a token belongs to: 0 in the first contiguous run of ``loss_mask[T]``, 1 in the second, …; [T] long. Off the mask the
    number means nothing."""
    begins = loss_mask & ~torch.cat([torch.zeros_like(loss_mask[:1]), loss_mask[:-1]])
    return begins.long().cumsum(0) - 1


def step_gae(
    rewards: Tensor, values: Tensor, loss_mask: Tensor, steps: Tensor, gamma: float, alpha: float, value: Literal["average", "last"]
) -> Tensor:
    """GAE from step to step, not token to token (an ablation of arXiv 2607.07508). With V_k one value of step k, R_k the sum of its rewards,

        A_k = R_k + gamma · V_{k+1} − V_k + gamma · λ · A_{k+1},   λ = length_adaptive_lambda(number of steps)

    and every token of step k has the advantage A_k. ``value``: V_k is the "average" of its tokens' values, or that of its "last" token.
    ``steps[T]`` long: as ``step_index``. Otherwise as ``skip_observation_gae``, which it equals where every step is one token.
    """
    dtype = compute_dtype(rewards, values)
    action_rewards, action_values = rewards.detach()[loss_mask].to(dtype), values.detach()[loss_mask].to(dtype)
    _, owner, counts = torch.unique_consecutive(steps[loss_mask], return_inverse=True, return_counts=True)
    nothing = torch.zeros(len(counts), dtype=dtype, device=rewards.device)
    step_rewards = nothing.index_add(0, owner, action_rewards)
    if value == "average":
        step_values = nothing.index_add(0, owner, action_values) / counts
    else:
        step_values = action_values[counts.cumsum(0) - 1]
    everything = torch.ones_like(nothing, dtype=torch.bool)
    step_advantages = skip_observation_gae(step_rewards, step_values, everything, gamma, length_adaptive_lambda(len(counts), alpha))
    advantages = torch.zeros(loss_mask.shape, dtype=dtype, device=rewards.device)
    advantages[loss_mask] = step_advantages[owner]
    return advantages


def group_normalised(returns: Sequence[float], groups: Sequence[int | None], epsilon: float = GROUP_EPSILON) -> list[float]:
    """(G − mean) / (standard deviation + epsilon) within each group (GRPO, arXiv 2402.03300), one number a trajectory.

    The deviation is that of a sample (divisor n − 1), as common implementations have it. A trajectory without a group (None), or alone in its group,
    is compared with nobody: 0. A return that is not finite gets 0 and is left out of its group.
    """
    members: dict[int, list[float]] = {}
    for value, group in zip(returns, groups, strict=True):
        if group is not None and math.isfinite(value):
            members.setdefault(group, []).append(value)
    normalised = []
    for value, group in zip(returns, groups, strict=True):
        others = members.get(group, []) if group is not None and math.isfinite(value) else []
        normalised.append((value - statistics.fmean(others)) / (statistics.stdev(others) + epsilon) if len(others) > 1 else 0.0)
    return normalised


def batch_centred(returns: Sequence[float]) -> list[float]:
    """G − mean over the batch, one number a trajectory. A return that is not finite gets 0 and is left out of the mean."""
    finite = [value for value in returns if math.isfinite(value)]
    mean = statistics.fmean(finite) if finite else 0.0
    return [value - mean if math.isfinite(value) else 0.0 for value in returns]


def sample_mean(advantages: Sequence[Tensor], loss_masks: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Advantages under which every trajectory counts the same in a loss that is a mean over tokens: A · N / (B · l), l its own action tokens.

    Σ over tokens / N then is the mean over trajectories of the mean over each one's tokens.
    """
    lengths = [int(mask.sum()) for mask in loss_masks]
    mean_length = sum(lengths) / len(lengths)
    return tuple(advantage * (mean_length / length) for advantage, length in zip(advantages, lengths, strict=True))
