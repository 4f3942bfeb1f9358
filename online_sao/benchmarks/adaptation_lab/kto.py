"""What a user would otherwise do: train on the logged thumbs now and then with TRL's KTO trainer, and serve what comes out. An external baseline, no
recipe; the only import of TRL here.

Owns how logged answers become its data set. TRL's own defaults (β, weights, optimiser), but for what options say, fp32, and no gradient
checkpointing. The reference is the warm start throughout. What it has trained answers from the next interaction on: no lag.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from online_sao.benchmarks.adaptation_lab.answers import ANSWERS
from online_sao.benchmarks.adaptation_lab.students import Lesson
from online_sao.benchmarks.tiny_policy import warm_start
from online_sao.benchmarks.tiny_policy.task import END, PAD
from online_sao.benchmarks.tiny_policy.warm_start import WarmStart
from online_sao.models.adapter import Adapter, read_adapter
from online_sao.models.projections import find_projections
from online_sao.types import Trajectory

NAME = "kto"
LEAST = 2
"""Logged answers of either kind without which there is nothing to tell apart."""


class KTOStudent:
    """``every``: interactions between trainings, each of ``epochs`` over all thumbs logged so far, from the policy as it stands."""

    def __init__(
        self, base: Path, numbers: WarmStart, *, every: int, epochs: int, learning_rate: float, batch_size: int, lora_rank: int, seed: int
    ) -> None:
        self._base = base
        self._numbers = numbers
        self._every = every
        self._epochs = epochs
        self._learning_rate = learning_rate
        self._batch_size = batch_size
        self._rank = lora_rank
        self._random = Random(f"kto {seed}")
        self._seed = seed
        self._logged: list[Trajectory] = []
        self._folder = tempfile.TemporaryDirectory()
        self.adapters: Mapping[int, Adapter | None] = {0: None}

    def answering(self) -> int:
        return max(self.adapters)

    def learn(self, trajectories: Sequence[Trajectory]) -> Lesson:
        self._logged += trajectories
        good = sum(_desirable(trajectory) for trajectory in self._logged)
        if len(self._logged) % self._every == 0 and min(good, len(self._logged) - good) >= LEAST:
            self.adapters = {self.answering() + 1: self._trained()}
        return Lesson({})

    def snapshot(self) -> None:
        """It has no anchor: a branch of neutral scores would say nothing."""

    def restore(self, snapshot: Any) -> None:
        raise NotImplementedError("this baseline is not branched")

    def _trained(self) -> Adapter:
        """The policy after one more training, from the files of the adapter it leaves."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about features that take no part
            from datasets import Dataset, disable_progress_bars
            from trl import KTOConfig, KTOTrainer

            disable_progress_bars()
            shuffled = self._random.sample(self._logged, len(self._logged))  # the trainer itself goes in order
            adapter = Path(self._folder.name) / "adapter"
            model = self._policy(adapter)
            trainer = KTOTrainer(
                model,
                ref_model=warm_start.load(ANSWERS, self._base, self._numbers),
                args=KTOConfig(
                    output_dir=str(Path(self._folder.name) / "trainer"),
                    use_cpu=True,
                    bf16=False,
                    gradient_checkpointing=False,
                    learning_rate=self._learning_rate,
                    num_train_epochs=self._epochs,
                    per_device_train_batch_size=self._batch_size,
                    seed=self._seed,
                    logging_strategy="no",
                    save_strategy="no",
                    report_to="none",
                    disable_tqdm=True,
                ),
                train_dataset=Dataset.from_list([_example(trajectory) for trajectory in shuffled]),
                processing_class=_tokenizer(),
            )
            trainer.train()
            model.save_pretrained(str(adapter))
        return read_adapter(adapter)

    def _policy(self, adapter: Path) -> Any:
        """As the last training left it; at first, a new adapter on the warm start."""
        base = warm_start.load(ANSWERS, self._base, self._numbers)
        if adapter.is_dir():
            return PeftModel.from_pretrained(base, str(adapter), is_trainable=True)
        names = sorted({name.rpartition(".")[2] for name in find_projections(base).names})
        lora = LoraConfig(r=self._rank, lora_alpha=2 * self._rank, lora_dropout=0.0, bias="none", target_modules=names, task_type="CAUSAL_LM")
        return get_peft_model(base, lora)


def _desirable(trajectory: Trajectory) -> bool:
    """A score of at least the middle: thumbs up."""
    return trajectory.reward >= 0.0


def _example(trajectory: Trajectory) -> dict[str, Any]:
    first = trajectory.loss_mask.index(True)
    prompt, answer = trajectory.token_ids[:first], trajectory.token_ids[first:]
    ended = answer if answer[-1] == END else (*answer, END)  # as the trainer would add it, without the space
    return {"prompt": _text(prompt), "completion": " " + _text(ended), "label": _desirable(trajectory)}


def _text(token_ids: Sequence[int]) -> str:
    return " ".join(f"t{token}" for token in token_ids)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Words "t0", "t1", …, one a token."""
    tokenizer = Tokenizer(WordLevel({f"t{token}": token for token in range(ANSWERS.vocabulary)}, unk_token=f"t{PAD}"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=f"t{PAD}", eos_token=f"t{END}", unk_token=f"t{PAD}")
