"""One learner: a policy, its value model, their optimisers, and the one update that moves them.

Owns the order of docs/design.md §5 (targets, K value updates, fresh values, advantages, one policy update) and follows whatever recipe it is given.

Knows nothing of databases, versions, gates or files beyond its own state: whoever calls ``update`` takes a snapshot first and decides what becomes
of the result. Not safe for concurrent use; every method is blocking.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from online_sao.algorithm.calibration import calibration_slope
from online_sao.algorithm.diagnostics import explained_variance
from online_sao.algorithm.recipes import CreditInputs, Recipe
from online_sao.errors import OnlineSAOError, PolicyStoreError, RanksLostError
from online_sao.experience.batching import TrainBatch
from online_sao.learner import state as learner_state
from online_sao.learner.layout import by_microbatch, by_trajectory
from online_sao.learner.policy_training import accumulate
from online_sao.learner.ranks import Ranks
from online_sao.learner.report import PolicyPass, PolicyPiece, UpdateReport, ValuePass, data_metrics, masked_fractions, policy_metrics, value_metrics
from online_sao.learner.state import LearnerIdentity, LearnerState, ValueRecord
from online_sao.learner.stepping import make_optimizer, step, trained_parameters
from online_sao.learner.value_training import PretrainingReport, ValueTrainer, batch_returns
from online_sao.models.adapter import ADAPTER_WEIGHTS, MergedView, check_fits, read_adapter
from online_sao.models.backbone import Backbone
from online_sao.models.catalog import base_digest, load_model
from online_sao.models.fingerprint import fingerprint
from online_sao.models.policy import PolicyModel, token_logprobs
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
        self.identity = LearnerIdentity(digest, lora_rank, lora_alpha)
        self._backbone = Backbone(base, lora_rank=lora_rank, lora_alpha=lora_alpha, seed=seed)
        self.ranks.place(self._backbone, device)
        self._backbone.to(device)
        self.policy = PolicyModel(self._backbone)
        self.value = ValueModel(self._backbone)
        self._policy_optimizer = make_optimizer(self.policy.parameters(), recipe.policy_learning_rate, recipe)
        self._value_optimizer = make_optimizer(self.value.parameters(), recipe.value_learning_rate, recipe)
        self._value_trainer = ValueTrainer(self.value, self._value_optimizer, recipe.gradient_clip, self.ranks)
        self._window: deque[ValueRecord] = deque(maxlen=EXPLAINED_VARIANCE_TRAJECTORIES)
        self.updates = 0
        """Updates these weights have been through."""
        self._kl_base = 0.0
        """Mean KL(policy ‖ base) as the latest update met it, in nats a token."""
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
        """One update on ``batch``: moves the value model, then the policy once. The very first also makes the recipe's value-only passes.

        A step whose loss or gradients are not finite is not applied; nor is a policy step for which no token is left. ``cancelled`` is asked
        before every microbatch. Raises UpdateCancelledError when it says yes.
        """

        def check() -> None:
            if cancelled():
                raise UpdateCancelledError("The update was cancelled.")

        self.ranks.lead("update", batch, state=self.snapshot)
        rewards = by_trajectory(batch, [microbatch.rewards for microbatch in batch.microbatches])
        returns = batch_returns(batch, self.recipe.gamma)
        value_pass, values = self._values(batch, returns, check)
        credit_inputs = [CreditInputs(r, v, _all(r)) for r, v in zip(rewards, values, strict=True)]
        history = tuple(self._window)
        advantages = by_microbatch(batch, self.recipe.advantages(credit_inputs, history))
        slope = calibration_slope(history, self.recipe.calibration_half_life)
        beta = self.recipe.anchor_strength([float(past[0]) for past, _ in history] + [float(returned[0]) for returned in returns], self._kl_base)
        policy_pass = self._train_policy(batch, advantages, beta, check)
        self.updates += 1
        self._kl_base = policy_pass.kl_base
        self._window.extend(zip(returns, by_trajectory(batch, value_pass.values_before), strict=True))
        metrics = {
            **policy_metrics(policy_pass, advantages),
            **value_metrics(value_pass, self._explained_variance(), len(self._window), slope),
            **data_metrics(batch),
        }
        return UpdateReport(
            metrics=metrics,
            masked_fraction=masked_fractions(batch, policy_pass.weights),
            ratio_histogram=policy_pass.ratio_histogram(),
            problem=value_pass.problem or policy_pass.problem,
        )

    def _values(self, batch: TrainBatch, returns: Sequence[Tensor], check: Callable[[], None]) -> tuple[ValuePass, list[Tensor]]:
        """K value updates on the whole batch (more where the value model has never been trained), and the values [l_i] that credit looks at."""
        if not self.recipe.uses_values:
            nothing = [torch.zeros_like(returned) for returned in returns]
            return ValuePass(values_before=by_microbatch(batch, nothing)), nothing
        passes = self.recipe.value_updates + (0 if self._window else self.recipe.value_warmup_updates)
        result = self._value_trainer.train(batch, by_microbatch(batch, returns), passes, check)
        if result.updates and self.recipe.fresh_values:
            return result, self._value_trainer.read(batch, check)
        return result, by_trajectory(batch, result.values_before)

    def _train_policy(self, batch: TrainBatch, advantages: Sequence[Tensor], beta: float, check: Callable[[], None]) -> PolicyPass:
        started = time.perf_counter()
        result = PolicyPass(anchor_coefficient=beta)
        self._policy_optimizer.zero_grad(set_to_none=True)

        def work(index: int) -> PolicyPiece:
            return accumulate(self.policy, self.recipe, batch.microbatches[index], advantages[index], beta, batch.num_action_tokens)

        for piece in self.ranks.each(len(batch.microbatches), work, check, trained_parameters(self._policy_optimizer)):
            result.add(piece)
        # Without a single trained token there is no gradient but the anchor's, and Adam would still move along its memory of earlier steps.
        if any(bool(weights.kept.any()) for weights in result.weights):
            norm = step(self._policy_optimizer, result.loss, self.recipe.gradient_clip, self.ranks)
            result.step_applied = norm is not None
            result.grad_norm = math.nan if norm is None else norm
            result.problem = "the policy's loss or gradients are not finite" if norm is None else None
        else:
            self._policy_optimizer.zero_grad(set_to_none=True)
        result.seconds = time.perf_counter() - started
        return result

    def _explained_variance(self) -> Tensor:
        returns, values = zip(*self._window, strict=True)
        return explained_variance(torch.cat(returns), torch.cat(values))

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
                gamma=self.recipe.gamma,
                batch_size=self.recipe.batch_size,
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
            self._window = deque(records, maxlen=EXPLAINED_VARIANCE_TRAJECTORIES)
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

    @torch.no_grad()
    def score(self, prompt_ids: Sequence[int], token_ids: Sequence[int], temperature: float) -> list[float]:
        """Log-probabilities of ``token_ids`` after ``prompt_ids`` (at least one) under the policy as it stands, at ``temperature``."""
        if self.ranks.sharded:
            self.ranks.lead("score", prompt_ids, token_ids, temperature, state=self.snapshot)
        ids = torch.tensor([*prompt_ids, *token_ids], device=self.policy.device)
        everywhere = torch.arange(len(ids), device=ids.device)
        positions = everywhere[len(prompt_ids) :]
        logits = self.policy.logits(self.policy.states(ids, everywhere, torch.zeros_like(ids), positions - 1))
        temperatures = torch.full((len(positions),), temperature, device=ids.device)
        logprobs: list[float] = token_logprobs(logits, ids[positions], temperatures).tolist()
        return logprobs

    @contextmanager
    def standing_on(self, adapter_dir: Path | None) -> Iterator[None]:
        """Inside, the policy is that of a published adapter (None: the base). Raises PolicyStoreError if it cannot be read or does not fit."""
        parameters = self.policy.parameters()
        kept = learner_state.copy_tensors(parameters)
        try:
            with torch.no_grad():
                if adapter_dir is None:
                    for name, parameter in parameters.items():
                        if ".lora_B." in name:
                            parameter.zero_()
                else:
                    self._copy_adapter(adapter_dir)
            yield
        finally:
            self._assign(parameters, kept)

    def stand_on_published(self, adapter_dir: Path, value_from: Path | None) -> None:
        """The policy of a published adapter with fresh optimisers, and the value model of a saved state (None: an untrained one).

        Raises PolicyStoreError if the adapter cannot be read or does not fit, ConfigurationError as ``load``. Then nothing has changed.
        """
        before = self.snapshot()
        fresh = self._initial
        if value_from is not None:
            saved = learner_state.read(value_from, self.identity)
            fresh = replace(fresh, value=saved.value, window=saved.window, updates=saved.updates)
        try:
            self.restore(fresh)
            self._copy_adapter(adapter_dir)
        except BaseException:
            self.restore(before)
            raise

    @torch.no_grad()
    def _copy_adapter(self, adapter_dir: Path) -> None:
        adapter = read_adapter(adapter_dir)
        check_fits(self._backbone.pristine, adapter)
        for name, (a, b) in self._backbone.adapter("policy").matrices.items():
            if name not in adapter.matrices or adapter.matrices[name][0].shape != a.shape:
                raise PolicyStoreError(f"The adapter in {adapter_dir} was made with another LoRA rank: set policy.lora_rank back to it.")
            a.copy_(adapter.matrices[name][0])
            b.copy_(adapter.matrices[name][1])

    def served_digest(self) -> tuple[float, ...]:
        """Fingerprint of the weights an engine serves once it has merged this policy."""
        if self.ranks.sharded:
            self.ranks.lead("served_digest", state=self.snapshot)
        return fingerprint(MergedView(self._backbone.pristine, self._backbone.adapter("policy")))

    def export_adapter(self, folder: Path) -> None:
        """The policy as a PEFT adapter: adapter_model.safetensors and adapter_config.json, into an existing folder."""
        tensors = {}
        for name, (a, b) in self._backbone.adapter("policy").matrices.items():
            tensors[f"base_model.model.{name}.lora_A.weight"] = a.contiguous()
            tensors[f"base_model.model.{name}.lora_B.weight"] = b.contiguous()
        save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        self._backbone.lora_config("policy").save_pretrained(str(folder))

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
            kl_base=self._kl_base,
            random_state=torch.get_rng_state(),
        )

    def restore(self, snapshot: LearnerState) -> None:
        """Back to a snapshot, bit for bit. It stays usable."""
        self._assign(self.policy.parameters(), snapshot.policy)
        self._assign(self.value.parameters(), snapshot.value)
        learner_state.load_optimizer(self._policy_optimizer, snapshot.policy_optimizer, self.recipe.policy_learning_rate)
        learner_state.load_optimizer(self._value_optimizer, snapshot.value_optimizer, self.recipe.value_learning_rate)
        self._policy_optimizer.zero_grad(set_to_none=True)
        self._value_optimizer.zero_grad(set_to_none=True)
        self._window = deque(snapshot.window, maxlen=EXPLAINED_VARIANCE_TRAJECTORIES)
        self.updates = snapshot.updates
        self._kl_base = snapshot.kl_base
        torch.set_rng_state(snapshot.random_state)

    def reset(self) -> None:
        """Back to the base policy and an untrained value model."""
        self.restore(self._initial)

    def save(self, folder: Path) -> None:
        """Into an existing folder; not atomic (see checkpoints.py). ``load`` in a learner made the same way resumes exactly."""
        learner_state.write(self.snapshot(), self.identity, folder)

    def load(self, folder: Path) -> None:
        """Raises ConfigurationError if what is saved there belongs to another base model or rank."""
        self.restore(learner_state.read(folder, self.identity))

    def load_value(self, folder: Path) -> None:
        """The value model, its optimiser and its window of a saved state; the policy stays. Raises ConfigurationError as ``load``."""
        saved = learner_state.read(folder, self.identity)
        self.restore(replace(self.snapshot(), value=saved.value, value_optimizer=saved.value_optimizer, window=saved.window))

    @staticmethod
    @torch.no_grad()
    def _assign(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def _all(tensor: Tensor) -> Tensor:
    """The mask that leaves nothing out: the tensors here hold action tokens only."""
    return torch.ones_like(tensor, dtype=torch.bool)
