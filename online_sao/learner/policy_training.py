"""The policy's part of an update: one microbatch's losses and their gradients. Takes no step; gradients add up in the policy's parameters.

The policy loss (docs/design.md §5) and the anchor, over the action tokens of the whole batch. Knows no value model and no optimiser.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from online_sao.algorithm.diagnostics import entropy
from online_sao.algorithm.importance import TokenWeights
from online_sao.algorithm.losses import anchor_loss, policy_loss
from online_sao.algorithm.recipes import Recipe
from online_sao.experience.batching import PackedMicrobatch
from online_sao.learner.report import PolicyPiece
from online_sao.learner.stepping import forward_inputs
from online_sao.models.policy import PolicyModel, token_logprobs

HEAD_TOKENS = 128
"""Action tokens whose logits over the whole vocabulary exist at one time (25 MB a copy for the bundled model)."""


def accumulate(
    policy: PolicyModel, recipe: Recipe, microbatch: PackedMicrobatch, advantages: Tensor, beta: float, num_action_tokens: int
) -> PolicyPiece:
    """Forward and backward of one microbatch; gradients add up in the policy's parameters. ``beta`` is the anchor's coefficient,
    ``num_action_tokens`` N of the whole batch, over all microbatches and ranks.

    The vocabulary is met HEAD_TOKENS tokens at a time, so that a long answer costs no more memory than a short one: first to learn every
    current logprob (a treatment may weigh a token by its whole trajectory), then for the losses. Their gradients meet in ``leaf``.
    """
    microbatch, advantages = microbatch.to(policy.device), advantages.to(policy.device)
    base_states = policy.base_states(*forward_inputs(microbatch))
    states = policy.states(*forward_inputs(microbatch))
    leaf = states.detach().requires_grad_()
    chunks = [slice(start, start + HEAD_TOKENS) for start in range(0, len(leaf), HEAD_TOKENS)]
    ids, temperatures = microbatch.action_ids, microbatch.temperatures
    with torch.no_grad():
        current = torch.cat([token_logprobs(policy.logits(leaf[c]), ids[c], temperatures[c]) for c in chunks])
    decided = recipe.token_weights(current, microbatch.behavior_logprobs, advantages, microbatch.trajectory_index)
    losses, kl_base, entropies = [], [], []
    for c in chunks:
        logits = policy.logits(leaf[c])
        loss = policy_loss(token_logprobs(logits, ids[c], temperatures[c]), decided.weights[c], advantages[c], num_action_tokens)
        with torch.set_grad_enabled(beta > 0):
            anchor = anchor_loss(logits, policy.logits(base_states[c]), temperatures[c], num_action_tokens)
        total = loss + beta * anchor
        total.backward()  # type: ignore[no-untyped-call]
        losses.append(float(total.detach()))
        kl_base.append(float(anchor.detach()))
        entropies.append(entropy(logits.detach(), temperatures[c]).cpu())
    states.backward(leaf.grad)  # type: ignore[no-untyped-call]
    decided = TokenWeights(**{item.name: getattr(decided, item.name).cpu() for item in fields(decided)})
    return PolicyPiece(losses, kl_base, entropies, decided, (current - microbatch.behavior_logprobs).cpu())
