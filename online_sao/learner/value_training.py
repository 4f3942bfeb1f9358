"""Training and reading the value model on whole batches, and pretraining it on what has been logged. Moves no policy weight.

Value targets are the λ = 1 returns, the loss is their mean squared error over action tokens (docs/design.md §5, Values). A value-only pass consumes
no trajectory.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from online_sao.algorithm.advantages import monte_carlo_returns
from online_sao.algorithm.diagnostics import explained_variance
from online_sao.algorithm.losses import value_loss
from online_sao.algorithm.recipes import Recipe
from online_sao.experience.batching import PackedMicrobatch, TrainBatch, pack
from online_sao.learner.layout import by_microbatch, by_trajectory, chain_positions
from online_sao.learner.ranks import Ranks
from online_sao.learner.report import ValuePass
from online_sao.learner.state import ValueRecord
from online_sao.learner.stepping import forward_inputs, step, trained_parameters
from online_sao.models.value import ValueModel
from online_sao.types import Trajectory

Check = Callable[[], None]
"""Called before every microbatch; raises where the work is to be given up."""

PATIENCE = 2
"""Epochs without a better explanation of the held-out trajectories after which pretraining ends."""


@dataclass(frozen=True, slots=True)
class PretrainingReport:
    """What value pretraining did. Explained variances are over the held-out trajectories, which were never trained on. ``epochs`` 0: no epoch
    explained more than the value model did before, and it has been left as it was."""

    trained: int
    held_out: int
    epochs: int
    explained_variance_before: float
    explained_variance_after: float


def batch_returns(batch: TrainBatch, gamma: float) -> list[Tensor]:
    """The value targets [l_i] of every trajectory of a batch."""
    rewards = by_trajectory(batch, [microbatch.rewards for microbatch in batch.microbatches])
    return [monte_carlo_returns(reward, torch.ones_like(reward, dtype=torch.bool), gamma) for reward in rewards]


def no_values(batch: TrainBatch, returns: Sequence[Tensor]) -> tuple[ValuePass, list[Tensor]]:
    """What ``train_and_read`` gives a recipe that does not look at values."""
    nothing = [torch.zeros_like(returned) for returned in returns]
    return ValuePass(values_before=by_microbatch(batch, nothing)), nothing


def held_apart(trajectories: Sequence[Trajectory], seed: int) -> tuple[list[Trajectory], list[Trajectory]]:
    """A fifth of them, at random, and the others. Raises ValueError for fewer than two."""
    if len(trajectories) < 2:
        raise ValueError(f"value pretraining needs at least two trajectories, not {len(trajectories)}")
    shuffled = list(trajectories)
    random.Random(seed).shuffle(shuffled)
    count = max(1, len(shuffled) // 5)
    return shuffled[:count], shuffled[count:]


class ValueTrainer:
    """``optimizer`` holds the parameters of ``model`` and nothing else."""

    def __init__(self, model: ValueModel, optimizer: torch.optim.AdamW, gradient_clip: float, ranks: Ranks) -> None:
        self._model = model
        self._optimizer = optimizer
        self._clip = gradient_clip
        self._ranks = ranks

    def train(self, batch: TrainBatch, targets: Sequence[Tensor], passes: int, check: Check) -> ValuePass:
        """``passes`` updates on the whole batch; targets [N_m] by microbatch. The first pass also gives the values from before the update, which
        then come at no cost."""
        started = time.perf_counter()
        result = ValuePass()

        def accumulate(index: int) -> tuple[float, Tensor]:
            with self._model.active():
                values = self._values(batch.microbatches[index])
                loss = value_loss(values, targets[index].to(self._model.device), batch.num_action_tokens)
                self._ranks.backward(loss)
            return float(loss.detach()), values.detach().cpu()

        for number in range(passes):
            self._optimizer.zero_grad(set_to_none=True)
            pieces = self._ranks.each(len(batch.microbatches), accumulate, check, self._parameters())
            total = 0.0
            for loss, _ in pieces:
                total += loss
            if number == 0:
                result.loss = total
                result.values_before = [values for _, values in pieces]
            norm = step(self._optimizer, total, self._clip, self._ranks)
            if norm is None:
                result.problem = f"value update {number + 1} of {passes}: its loss or gradients are not finite"
                break
            result.grad_norm = max(result.grad_norm, norm)
            result.updates += 1
        if passes == 0:
            result.values_before = self._read(batch, check)
        result.seconds = time.perf_counter() - started
        return result

    def train_and_read(
        self, recipe: Recipe, batch: TrainBatch, returns: Sequence[Tensor], warmup: int, check: Check
    ) -> tuple[ValuePass, list[Tensor]]:
        """The recipe's K value updates and ``warmup`` more, on targets [l_i] of every trajectory; and the values that its credit looks at: of action
        tokens, or of whole chains (layout.chain_mask) where it has observation_values."""
        if not recipe.uses_values:
            return no_values(batch, returns)
        chains = self._read_chains(batch, check) if recipe.observation_values and not recipe.fresh_values else None
        result = self.train(batch, by_microbatch(batch, returns), recipe.value_updates + warmup, check)
        if recipe.observation_values:
            return result, self._read_chains(batch, check) if chains is None else chains
        if result.updates and recipe.fresh_values:
            return result, self.read(batch, check)
        return result, by_trajectory(batch, result.values_before)

    def read(self, batch: TrainBatch, check: Check) -> list[Tensor]:
        """Values [l_i] of every trajectory, without gradient."""
        return by_trajectory(batch, self._read(batch, check))

    def _read(self, batch: TrainBatch, check: Check) -> list[Tensor]:
        @torch.no_grad()
        def values(index: int) -> Tensor:
            return self._values(batch.microbatches[index]).cpu()

        return self._ranks.each(len(batch.microbatches), values, check)

    def _read_chains(self, batch: TrainBatch, check: Check) -> list[Tensor]:
        """Values [c_i] of every trajectory's chain, without gradient."""

        @torch.no_grad()
        def values(number: int) -> dict[int, Tensor]:
            indices, positions = chain_positions(batch, batch.microbatches[number])
            read = self._values(batch.microbatches[number], torch.cat(positions)).cpu()
            return dict(zip(indices, torch.split(read, [len(position) for position in positions]), strict=True))

        found = {index: chain for part in self._ranks.each(len(batch.microbatches), values, check) for index, chain in part.items()}
        return [found[index] for index in range(len(batch.trajectories))]

    def pretrain(
        self,
        trajectories: Sequence[Trajectory],
        *,
        recipe: Recipe,
        max_tokens: int,
        max_epochs: int,
        seed: int,
        check: Check,
        progress: Callable[[int, int], None],
    ) -> tuple[PretrainingReport, list[ValueRecord]]:
        """Value updates on logged trajectories, epoch after epoch, as long as they explain more of a held-out fifth; the best epoch is kept.

        ``progress(done, of)`` counts value updates. Returns what was done, and (returns, values) of the held-out trajectories. Raises ValueError
        for fewer than two trajectories, and whatever ``check`` raises: the weights are then somewhere in between.
        """
        aside, training = held_apart(trajectories, seed)
        held_out = pack(aside, max_tokens, self._ranks.at_once)
        held_out_returns = batch_returns(held_out, recipe.gamma)
        chunks = [
            pack(training[start : start + recipe.batch_size], max_tokens, self._ranks.at_once) for start in range(0, len(training), recipe.batch_size)
        ]
        best_values = self.read(held_out, check)
        before = best = explained(held_out_returns, best_values)
        best_state, best_epoch = self._state(), 0
        for epoch in range(1, max_epochs + 1):
            for number, chunk in enumerate(chunks):
                self.train(chunk, by_microbatch(chunk, batch_returns(chunk, recipe.gamma)), 1, check)
                progress((epoch - 1) * len(chunks) + number + 1, max_epochs * len(chunks))
            values = self.read(held_out, check)
            found = explained(held_out_returns, values)
            if found > best:
                best, best_values, best_state, best_epoch = found, values, self._state(), epoch
            elif epoch - best_epoch >= PATIENCE:
                break
        self._restore(best_state)
        report = PretrainingReport(len(training), len(aside), best_epoch, before, best)
        return report, list(zip(held_out_returns, best_values, strict=True))

    def _values(self, microbatch: PackedMicrobatch, positions: Tensor | None = None) -> Tensor:
        """[N] of a microbatch's action tokens, or at other ``positions`` of its row."""
        at = (microbatch.state_positions if positions is None else positions).to(self._model.device)
        return self._model.values(*forward_inputs(microbatch.to(self._model.device))[:3], at)

    def _state(self) -> tuple[list[Tensor], dict[str, object]]:
        return [parameter.detach().clone() for parameter in self._parameters()], copy.deepcopy(self._optimizer.state_dict())

    @torch.no_grad()
    def _restore(self, state: tuple[list[Tensor], dict[str, object]]) -> None:
        for parameter, kept in zip(self._parameters(), state[0], strict=True):
            parameter.copy_(kept)
        self._optimizer.load_state_dict(copy.deepcopy(state[1]))

    def _parameters(self) -> list[torch.nn.Parameter]:
        return trained_parameters(self._optimizer)


def explained(returns: Sequence[Tensor], values: Sequence[Tensor]) -> float:
    return float(explained_variance(torch.cat(list(returns)), torch.cat(list(values))))
