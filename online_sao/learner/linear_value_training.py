"""A value model that is linear in the base's states, and how it is trained and read: each trajectory is met once, and the fit of all is the best.

Value targets are the λ = 1 returns, as of ``ValueTrainer``, whose interface this is. There is no gradient, and no number of updates: K and the
recipe's value learning rate and warm-up say nothing here. Moves no policy weight.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from online_sao.algorithm.losses import value_loss
from online_sao.algorithm.recipes import Recipe
from online_sao.algorithm.ridge import Sums
from online_sao.experience.batching import TrainBatch, pack
from online_sao.learner.base_states import BaseStates
from online_sao.learner.layout import by_microbatch, by_trajectory, chain_mask, chain_positions
from online_sao.learner.ranks import Ranks
from online_sao.learner.report import ValuePass
from online_sao.learner.state import ValueRecord, assign, copy_tensors
from online_sao.learner.value_training import Check, PretrainingReport, batch_returns, explained, held_apart, no_values
from online_sao.models.pooled import Pooled
from online_sao.types import Trajectory


class LinearValueModel:
    """V(a_t): the best linear fit of the returns that were met (``algorithm/ridge.py``). Nothing met: 0 everywhere, the middle of the reward range.
    No weight of the transformer is its own."""

    def __init__(self, hidden_size: int) -> None:
        self.features = Pooled(hidden_size)
        self._sums = Sums.nothing(self.features.size)

    def parameters(self) -> dict[str, Tensor]:
        """All it remembers, by name; live."""
        return {name: getattr(self._sums, name) for name in Sums.__slots__}

    def learn(self, features: Sequence[Tensor], returns: Sequence[Tensor], half_life: float) -> None:
        """From trajectories that came together: [l_i, size] and [l_i] of each."""
        self._sums = self._sums.after(features, returns, half_life)

    def values(self, features: Sequence[Tensor], ridge: float) -> list[Tensor]:
        """[l_i] of each."""
        fit = self._sums.fit(ridge)
        return [fit(each) for each in features]


class LinearValueTrainer:
    def __init__(self, model: LinearValueModel, base: BaseStates, ranks: Ranks) -> None:
        self._model = model
        self._base = base
        self._ranks = ranks

    def train_and_read(
        self, recipe: Recipe, batch: TrainBatch, returns: Sequence[Tensor], warmup: int, check: Check
    ) -> tuple[ValuePass, list[Tensor]]:
        """Meet ``batch`` with targets [l_i] of every trajectory; the values that the recipe's credit looks at, from before or after."""
        if not recipe.uses_values:
            return no_values(batch, returns)
        started = time.perf_counter()
        features = self._features(batch, check)
        before = self._model.values(features, recipe.value_ridge)
        if not all(bool(torch.isfinite(values).all()) for values in before):
            return ValuePass(values_before=by_microbatch(batch, before), problem="the value model's states or its fit are not finite"), before
        self._model.learn(features, returns, recipe.value_half_life)
        values = self._model.values(features, recipe.value_ridge) if recipe.fresh_values else before
        loss = float(value_loss(torch.cat(before), torch.cat(list(returns)), batch.num_action_tokens))
        result = ValuePass(values_before=by_microbatch(batch, before), loss=loss, updates=1, seconds=time.perf_counter() - started)
        return result, values

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
        """As ``ValueTrainer.pretrain``, in one epoch: meeting a trajectory again would count it twice. All weigh the same."""
        aside, training = held_apart(trajectories, seed)
        held_out = pack(aside, max_tokens, self._ranks.at_once)
        returns, features = batch_returns(held_out, recipe.gamma), self._features(held_out, check)
        values_before = self._model.values(features, recipe.value_ridge)
        untaught = copy_tensors(self._model.parameters())
        starts = range(0, len(training), recipe.batch_size)
        for number, start in enumerate(starts, start=1):
            chunk = pack(training[start : start + recipe.batch_size], max_tokens, self._ranks.at_once)
            self._model.learn(self._features(chunk, check), batch_returns(chunk, recipe.gamma), math.inf)
            progress(number, len(starts))
        values = self._model.values(features, recipe.value_ridge)
        before, after = explained(returns, values_before), explained(returns, values)
        better = after > before
        if not better:
            assign(self._model.parameters(), untaught)
            values, after = values_before, before
        return PretrainingReport(len(training), len(aside), int(better), before, after), list(zip(returns, values, strict=True))

    def _features(self, batch: TrainBatch, check: Check) -> list[Tensor]:
        """[l_i, size] of every trajectory."""

        def seen(number: int) -> Tensor:
            microbatch = batch.microbatches[number]
            views = self._base.views(microbatch)
            found = []
            for index, positions in zip(*chain_positions(batch, microbatch), strict=True):
                actions = chain_mask(batch.trajectories[index])
                # Before the chain's first token stands the prompt, before each other the one before it in the chain.
                own = torch.cat([torch.zeros_like(actions[:1]), actions[:-1]])
                found.append(self._model.features.of(views.at(positions.to(views.final.device)), own)[actions])
            return torch.cat(found)

        return by_trajectory(batch, self._ranks.each(len(batch.microbatches), seen, check))
