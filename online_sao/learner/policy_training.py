"""The policy's part of an update: the losses of docs/algorithm.md over the action tokens of a batch, their gradients, and one step (or as many as the
recipe takes). Owns in which order they come and what is measured on the way; knows no value model and no credit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from online_sao.algorithm.diagnostics import entropy
from online_sao.algorithm.importance import TokenWeights
from online_sao.algorithm.losses import anchor_loss, policy_loss
from online_sao.algorithm.numerics import tempered_log_softmax
from online_sao.algorithm.recipes import Recipe, WeighInputs
from online_sao.experience.batching import PackedMicrobatch, TrainBatch
from online_sao.learner.base_states import BaseStates
from online_sao.learner.ranks import Ranks
from online_sao.learner.report import PolicyPass, PolicyPiece
from online_sao.learner.stepping import forward_inputs, step, trained_parameters
from online_sao.models.policy import PolicyModel, token_logprobs

HEAD_TOKENS = 128
"""Action tokens whose logits over the whole vocabulary exist at one time (25 MB a copy for the bundled model)."""


@dataclass(frozen=True, slots=True)
class Strengths:
    """What pulls on the policy in this update, and how far it may go: both depend on what was earned lately."""

    anchor_coefficient: float
    learning_rate: float


class PolicyTrainer:
    """``optimizer`` holds the parameters of ``model`` and nothing else."""

    def __init__(self, model: PolicyModel, optimizer: torch.optim.AdamW, base: BaseStates, ranks: Ranks) -> None:
        self._model = model
        self._base = base
        self._optimizer = optimizer
        self._ranks = ranks

    def train(self, recipe: Recipe, batch: TrainBatch, advantages: Sequence[Tensor], strengths: Strengths, check: Callable[[], None]) -> PolicyPass:
        """One policy update; advantages [N_m] by microbatch. The recipe's ``policy_minibatches`` share the microbatches out; each share makes a step
        of its own, over its own N, and is measured as that step met it."""
        started = time.perf_counter()
        beta = strengths.anchor_coefficient
        result = PolicyPass(anchor_coefficient=beta, learning_rate=strengths.learning_rate)
        for group in self._optimizer.param_groups:
            group["lr"] = strengths.learning_rate
        count = len(batch.microbatches)
        steps = min(recipe.policy_minibatches, count)
        proximal = self._proximal_logprobs(batch, check) if steps > 1 else None
        pieces: dict[int, PolicyPiece] = {}
        # Microbatches come by falling length: dealt out in turn, each share has its part of the long ones.
        for share in (range(first, count, steps) for first in range(steps)):
            num_action_tokens = sum(len(batch.microbatches[index].action_ids) for index in share)

            def work(number: int, share: range = share, num_action_tokens: int = num_action_tokens) -> PolicyPiece:
                index = share[number]
                then = None if proximal is None else proximal[index]
                microbatch = batch.microbatches[index]
                states = self._base.of(microbatch)
                return accumulate(self._model, recipe, microbatch, states, advantages[index], beta, num_action_tokens, self._ranks.backward, then)

            self._optimizer.zero_grad(set_to_none=True)
            found = self._ranks.each(len(share), work, check, trained_parameters(self._optimizer))
            self._step(recipe, found, result)
            fraction = num_action_tokens / batch.num_action_tokens
            pieces.update(zip(share, (piece.scaled(fraction) for piece in found), strict=True))
        for number in range(count):
            result.add(pieces[number])
        result.seconds = time.perf_counter() - started
        return result

    def _step(self, recipe: Recipe, pieces: Sequence[PolicyPiece], result: PolicyPass) -> None:
        """One step on the gradients that have been left, which ``result`` is told of."""
        # Without a single trained token there is no gradient but the anchor's, and Adam would still move along its memory of earlier steps.
        if not any(bool(piece.weights.kept.any()) for piece in pieces):
            self._optimizer.zero_grad(set_to_none=True)
            return
        norm = step(self._optimizer, sum(loss for piece in pieces for loss in piece.losses), recipe.gradient_clip, self._ranks)
        if norm is None:
            result.problem = "the policy's loss or gradients are not finite"
        result.step_applied = result.step_applied or norm is not None
        result.grad_norm = math.nan if norm is None or result.problem else max(result.grad_norm, norm)

    def _proximal_logprobs(self, batch: TrainBatch, check: Callable[[], None]) -> list[Tensor]:
        """Logprobs [N_m] of the policy as it stands."""

        @torch.no_grad()
        def work(index: int) -> Tensor:
            microbatch = batch.microbatches[index].to(self._model.device)
            return _logprobs(self._model, self._model.states(*forward_inputs(microbatch)), microbatch).cpu()

        return self._ranks.each(len(batch.microbatches), work, check)


def accumulate(
    policy: PolicyModel,
    recipe: Recipe,
    microbatch: PackedMicrobatch,
    base: Tensor,
    advantages: Tensor,
    beta: float,
    num_action_tokens: int,
    backward: Callable[[Tensor, Tensor | None], None],
    proximal_logprobs: Tensor | None = None,
) -> PolicyPiece:
    """Forward and backward of one microbatch. ``base``: the base's states [T, H] of it; ``beta``: the anchor's coefficient; ``num_action_tokens``:
    N of the whole step, over all microbatches and ranks; ``backward`` leaves the gradients (ranks.py); ``proximal_logprobs`` [N_m]: None where they
    are the current ones.

    The vocabulary is met HEAD_TOKENS tokens at a time, so that a long answer costs no more memory than a short one: first to learn every
    current logprob (a treatment may weigh a token by its whole trajectory), then for the losses. Their gradients meet in ``leaf``.
    """
    microbatch, advantages = microbatch.to(policy.device), advantages.to(policy.device)
    base_states = base[microbatch.state_positions]
    with policy.active():
        states = policy.states(*forward_inputs(microbatch))
        leaf = states.detach().requires_grad_()
        ids, temperatures = microbatch.action_ids, microbatch.temperatures
        current = _logprobs(policy, leaf, microbatch)
        proximal = current if proximal_logprobs is None else proximal_logprobs.to(policy.device)
        decided = recipe.token_weights(WeighInputs(current, microbatch.behavior_logprobs, proximal, advantages, microbatch.trajectory_index))
        losses, kl_base, entropies = [], [], []
        for c in _chunks(len(leaf)):
            distribution = tempered_log_softmax(policy.logits(leaf[c]), temperatures[c])
            loss = policy_loss(distribution.of(ids[c]), decided.weights[c], advantages[c], num_action_tokens)
            with torch.set_grad_enabled(beta > 0):
                anchor = anchor_loss(distribution, tempered_log_softmax(policy.logits(base_states[c]), temperatures[c]), num_action_tokens)
            total = loss + beta * anchor
            total.backward()  # type: ignore[no-untyped-call]
            losses.append(float(total.detach()))
            kl_base.append(float(anchor.detach()))
            entropies.append(entropy(distribution).cpu())
        backward(states, leaf.grad)
    decided = TokenWeights(**{item.name: getattr(decided, item.name).cpu() for item in fields(decided)})
    return PolicyPiece(losses, kl_base, entropies, decided, (current - microbatch.behavior_logprobs).cpu())


@torch.no_grad()
def _logprobs(policy: PolicyModel, states: Tensor, microbatch: PackedMicrobatch) -> Tensor:
    """Log-probabilities [N] of a microbatch's action tokens from the states [N, H] that produce them."""
    ids, temperatures = microbatch.action_ids, microbatch.temperatures
    return torch.cat([token_logprobs(policy.logits(states[c]), ids[c], temperatures[c]) for c in _chunks(len(states))])


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + HEAD_TOKENS) for start in range(0, count, HEAD_TOKENS)]
