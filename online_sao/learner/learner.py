"""One learner: a policy, its value model, their optimisers, and the one update that moves them.

Owns the order of docs/design.md §5 (targets, K value updates, fresh values, advantages, one policy update) and follows whatever recipe it is given.

Knows nothing of databases, versions, gates or files beyond its own state: whoever calls ``update`` takes a snapshot first and decides what becomes
of the result. Not safe for concurrent use; every method is blocking.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from online_sao.algorithm.anchoring import BaseDistance
from online_sao.algorithm.calibration import calibration_slope
from online_sao.algorithm.diagnostics import explained_variance
from online_sao.algorithm.recipes import Recipe
from online_sao.errors import OnlineSAOError, RanksLostError
from online_sao.experience.batching import TrainBatch
from online_sao.learner import state as learner_state
from online_sao.learner.base_states import BaseStates
from online_sao.learner.credit import batch_advantages
from online_sao.learner.layout import by_trajectory
from online_sao.learner.linear_value_training import LinearValueModel, LinearValueTrainer
from online_sao.learner.policy_training import PolicyTrainer, Strengths
from online_sao.learner.published import PublishedView
from online_sao.learner.ranks import Ranks
from online_sao.learner.report import UpdateReport, data_metrics, masked_fractions, policy_metrics, value_metrics
from online_sao.learner.state import LearnerIdentity, LearnerState, ValueRecord
from online_sao.learner.stepping import make_optimizer
from online_sao.learner.value_training import PretrainingReport, ValueTrainer, batch_returns
from online_sao.models.backbone import Backbone
from online_sao.models.catalog import base_digest, load_model
from online_sao.models.policy import PolicyModel
from online_sao.models.value import ValueModel
from online_sao.types import Trajectory

logger = logging.getLogger(__name__)

EXPLAINED_VARIANCE_TRAJECTORIES = 256
"""The window of docs/design.md §4: fewer trajectories make explained variance meaningless."""


class UpdateCancelledError(OnlineSAOError):
    """The update was told to stop half-way. The learner is in between two states: restore a snapshot, or throw it away."""


class Learner:
    """``base`` is used in place (frozen) and must be the model that ``digest`` names. ``seed`` fixes the adapters' initialisation. ``ranks``: the
    processes, this one among them, that make updates together. Call the methods on rank 0; the others ``follow``. ``device``: where models and
    optimisers live; batches, states and reports are in main memory."""

    def __init__(
        self,
        base: PreTrainedModel,
        digest: str,
        recipe: Recipe,
        *,
        lora_rank: int,
        lora_alpha: int,
        seed: int = 0,
        ranks: Ranks | None = None,
        device: str = "cpu",
    ) -> None:
        self.recipe = recipe
        self.ranks = ranks or Ranks()
        self.identity = LearnerIdentity(digest, lora_rank, lora_alpha, recipe.value_adapter)
        self._backbone = Backbone(base, lora_rank=lora_rank, lora_alpha=lora_alpha, seed=seed, value_adapter=recipe.value_adapter)
        self.ranks.place(self._backbone, device)
        self._backbone.to(device)
        self.policy = PolicyModel(self._backbone)
        self._published = PublishedView(self._backbone, self.policy)
        self._policy_optimizer = make_optimizer(self.policy.parameters(), recipe.policy_learning_rate, recipe)
        linear = recipe.value_adapter == "none"
        # Where the base is divided, all ranks compute a pass or none does: none may have its states already.
        self._base = BaseStates(self._backbone, views=linear and recipe.uses_values, keep=not self.ranks.sharded)
        self._policy_trainer = PolicyTrainer(self.policy, self._policy_optimizer, self._base, self.ranks)
        self.value: ValueModel | LinearValueModel
        self._value_optimizer: torch.optim.AdamW | None = None
        self._value_trainer: ValueTrainer | LinearValueTrainer
        if linear:
            self.value = LinearValueModel(self._backbone.hidden_size)
            self._value_trainer = LinearValueTrainer(self.value, self._base, self.ranks)
        else:
            self.value = ValueModel(self._backbone)
            self._value_optimizer = make_optimizer(self.value.parameters(), recipe.value_learning_rate, recipe)
            self._value_trainer = ValueTrainer(self.value, self._value_optimizer, recipe.gradient_clip, self.ranks)
        self._window = self._as_window(())
        self.updates = 0
        """Updates these weights have been through."""
        self._distance = BaseDistance()
        self._initial = self.snapshot()

    @classmethod
    def open(
        cls,
        model_path: Path,
        recipe: Recipe,
        *,
        lora_rank: int,
        lora_alpha: int,
        seed: int = 0,
        ranks: Ranks | None = None,
        device: str = "cpu",
    ) -> Learner:
        """A learner that stands on the base model in a folder of models.catalog."""
        base, digest = load_model(model_path), base_digest(model_path)
        return cls(base, digest, recipe, lora_rank=lora_rank, lora_alpha=lora_alpha, seed=seed, ranks=ranks, device=device)

    @property
    def vocabulary_size(self) -> int:
        return self._backbone.vocabulary_size

    # --- the update ---------------------------------------------------------------------------------------------------------------------

    def update(self, batch: TrainBatch, cancelled: Callable[[], bool] = lambda: False) -> UpdateReport:
        """One update on ``batch``: moves the value model, then the policy. The very first also makes the recipe's value-only passes.

        A step whose loss or gradients are not finite is not applied; nor is a policy step for which no token is left. ``cancelled`` is asked
        before every microbatch. Raises UpdateCancelledError when it says yes.
        """

        def check() -> None:
            if cancelled():
                raise UpdateCancelledError("The update was cancelled.")

        self.ranks.lead("update", batch, state=self.snapshot)
        returns = batch_returns(batch, self.recipe.gamma)
        warmup = 0 if self._window else self.recipe.value_warmup_updates
        with self._base.kept():
            value_pass, values = self._value_trainer.train_and_read(self.recipe, batch, returns, warmup, check)
            history = tuple(self._window)
            advantages = batch_advantages(self.recipe, batch, values, history)
            slope = calibration_slope(history, self.recipe.calibration_half_life)
            earned = [float(past[0]) for past, _ in history] + [float(returned[0]) for returned in returns]
            strengths = Strengths(self.recipe.anchor_strength(earned, self._distance), self.recipe.step_size(earned))
            policy_pass = self._policy_trainer.train(self.recipe, batch, advantages, strengths, check)
        self.updates += 1
        self._distance = self._distance.after(policy_pass.kl_base, len(batch.trajectories))
        self._window.extend(zip(returns, by_trajectory(batch, value_pass.values_before), strict=True))
        seen = (torch.cat(records) for records in zip(*self._window, strict=True))
        metrics = {
            **policy_metrics(policy_pass, advantages),
            **value_metrics(value_pass, explained_variance(*seen), len(self._window), slope),
            **data_metrics(batch),
        }
        return UpdateReport(
            metrics=metrics,
            masked_fraction=masked_fractions(batch, policy_pass.weights),
            ratio_histogram=policy_pass.ratio_histogram(),
            problem=value_pass.problem or policy_pass.problem,
        )

    def _as_window(self, records: Iterable[ValueRecord]) -> deque[ValueRecord]:
        """The latest trajectories: as many as explained variance needs, or the recipe's baseline."""
        return deque(records, maxlen=max(EXPLAINED_VARIANCE_TRAJECTORIES, self.recipe.baseline_window))

    # --- before the first update ------------------------------------------------------------------------------------------------------

    @property
    def value_is_untrained(self) -> bool:
        """The value model has seen no trajectory yet: it stands as it was initialised."""
        return not self._window

    def pretrain_value(
        self,
        trajectories: Sequence[Trajectory],
        *,
        max_tokens: int,
        max_epochs: int = 8,
        seed: int = 0,
        cancelled: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> PretrainingReport:
        """Train the value model alone on logged trajectories (value_training.py). The held-out ones then stand in the window that explained variance
        and calibration look at. Raises ValueError for fewer than two, UpdateCancelledError; then nothing has changed."""

        def check() -> None:
            if cancelled():
                raise UpdateCancelledError("The pretraining was cancelled.")

        before = self.snapshot()
        self.ranks.lead("_pretrain_as_told", trajectories, max_tokens, max_epochs, seed, state=lambda: before)
        try:
            report, records = self._value_trainer.pretrain(
                trajectories,
                recipe=self.recipe,
                max_tokens=max_tokens,
                max_epochs=max_epochs,
                seed=seed,
                check=check,
                progress=progress,
            )
        except BaseException:
            self.restore(before)
            raise
        if report.epochs:
            self._window = self._as_window(records)
        return report

    def _pretrain_as_told(self, trajectories: Sequence[Trajectory], max_tokens: int, max_epochs: int, seed: int) -> None:
        self.pretrain_value(trajectories, max_tokens=max_tokens, max_epochs=max_epochs, seed=seed)

    # --- together with other ranks ------------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """The life of every rank but 0: compute what rank 0 computes, each time from its state. Returns when rank 0 has no more use for this one.

        Raises RanksLostError where rank 0 or another rank is gone, or silent for longer than the process group's timeout.
        """
        while (call := self.ranks.receive()) is not None:
            self.restore(call.state)
            try:
                getattr(self, call.method)(*call.arguments)
            except RanksLostError:
                raise
            except Exception as error:  # rank 0 has met the same one, and says what becomes of it
                logger.info("%s was given up: %s", call.method, error)

    # --- what others ask of it ----------------------------------------------------------------------------------------------------------

    def score(self, prompt_ids: Sequence[int], token_ids: Sequence[int], temperature: float) -> list[float]:
        """Log-probabilities of ``token_ids`` after ``prompt_ids`` (at least one) under the policy as it stands, at ``temperature``."""
        if self.ranks.sharded:
            self.ranks.lead("score", prompt_ids, token_ids, temperature, state=self.snapshot)
        return self._published.score(prompt_ids, token_ids, temperature)

    def standing_on(self, adapter_dir: Path | None) -> AbstractContextManager[None]:
        """Inside, the policy is that of a published adapter (None: the base). Raises PolicyStoreError if it cannot be read or does not fit."""
        return self._published.standing_on(adapter_dir)

    def stand_on_published(self, adapter_dir: Path, value_from: Path | None) -> None:
        """The policy of a published adapter with fresh optimisers, and the value model of a saved state (None: an untrained one).

        Raises PolicyStoreError if the adapter cannot be read or does not fit, ConfigurationError as ``load``. Then nothing has changed.
        """
        before = self.snapshot()
        fresh = self._initial
        if value_from is not None:
            saved = learner_state.read(value_from, self.identity, self.value.parameters())
            fresh = replace(fresh, value=saved.value, window=saved.window, updates=saved.updates)
        try:
            self.restore(fresh)
            self._published.take(adapter_dir)
        except BaseException:
            self.restore(before)
            raise

    def served_digest(self) -> tuple[float, ...]:
        """Fingerprint of the weights an engine serves once it has merged this policy."""
        if self.ranks.sharded:
            self.ranks.lead("served_digest", state=self.snapshot)
        return self._published.served_digest()

    def export_adapter(self, folder: Path) -> None:
        """The policy as a PEFT adapter: adapter_model.safetensors and adapter_config.json, into an existing folder."""
        self._published.export(folder)

    # --- state --------------------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> LearnerState:
        """Everything the next update depends on, copied."""
        return LearnerState(
            policy=learner_state.copy_tensors(self.policy.parameters()),
            value=learner_state.copy_tensors(self.value.parameters()),
            policy_optimizer=learner_state.copy_optimizer(self._policy_optimizer),
            value_optimizer=learner_state.copy_optimizer(self._value_optimizer),
            window=tuple(self._window),
            updates=self.updates,
            distance=self._distance,
            random_state=torch.get_rng_state(),
        )

    def restore(self, snapshot: LearnerState) -> None:
        """Back to a snapshot, bit for bit. It stays usable."""
        learner_state.assign(self.policy.parameters(), snapshot.policy)
        learner_state.assign(self.value.parameters(), snapshot.value)
        learner_state.load_optimizer(self._policy_optimizer, snapshot.policy_optimizer)
        learner_state.load_optimizer(self._value_optimizer, snapshot.value_optimizer)
        self._window = self._as_window(snapshot.window)
        self.updates = snapshot.updates
        self._distance = snapshot.distance
        torch.set_rng_state(snapshot.random_state)

    def reset(self) -> None:
        """Back to the base policy and an untrained value model."""
        self.restore(self._initial)

    def save(self, folder: Path) -> None:
        """Into an existing folder; not atomic (see checkpoints.py). ``load`` in a learner made the same way resumes exactly."""
        learner_state.write(self.snapshot(), self.identity, folder)

    def load(self, folder: Path) -> None:
        """Raises ConfigurationError if what is saved there belongs to another base model, rank, or kind of value model."""
        self.restore(learner_state.read(folder, self.identity, self.value.parameters()))

    def load_value(self, folder: Path) -> None:
        """The value model, its optimiser and its window of a saved state; the policy stays. Raises ConfigurationError as ``load``."""
        saved = learner_state.read(folder, self.identity, self.value.parameters())
        self.restore(replace(self.snapshot(), value=saved.value, value_optimizer=saved.value_optimizer, window=saved.window))
