"""What a user would otherwise do: train on the logged thumbs now and then with TRL's KTO trainer, and serve what comes out. An external baseline, no
recipe; the only import of TRL here.

Owns how logged answers become its data set. TRL's own defaults (β, optimiser), but for what options say, the weights that it asks for
where thumbs are uneven, fp32, and no gradient checkpointing. The reference is the warm start throughout. What it has trained answers from the next
interaction on: no lag.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.trainer_callback import PrinterCallback

from online_sao.benchmarks.adaptation_lab.answers import ANSWERS
from online_sao.benchmarks.adaptation_lab.students import Lesson
from online_sao.benchmarks.tiny_policy import warm_start
from online_sao.benchmarks.tiny_policy.task import END, PAD, Instance
from online_sao.benchmarks.tiny_policy.warm_start import WarmStart
from online_sao.models.adapter import Adapter, read_adapter
from online_sao.models.projections import find_projections
from online_sao.types import Trajectory

NAME = "kto"
EVENLY = 7 / 6
"""The middle of what KTO's authors advise."""
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
        self._state: dict[str, Tensor] | None = None
        """Of the adapter, as the last training left it."""
        self.adapters: Mapping[int, Adapter | None] = {0: None}

    def answering(self) -> int:
        return max(self.adapters)

    def learn(self, trajectories: Sequence[Trajectory], instances: Sequence[Instance]) -> Lesson:
        self._logged += trajectories
        desirable = sum(_desirable(trajectory) for trajectory in self._logged)
        if len(self._logged) % self._every == 0 and min(desirable, len(self._logged) - desirable) >= LEAST:
            self.adapters = {self.answering() + 1: self._trained(desirable)}
        return Lesson({})

    def snapshot(self) -> None:
        """It has no anchor: a branch of neutral scores would say nothing."""

    def restore(self, snapshot: Any) -> None:
        raise NotImplementedError("this baseline is not branched")

    def _trained(self, desirable: int) -> Adapter:
        """The policy after one more training, by the files of the adapter. ``desirable``: how many of the logged answers are."""
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")  # about features that take no part
            from datasets import Dataset, disable_progress_bars
            from trl import KTOConfig, KTOTrainer

            disable_progress_bars()
            shuffled = self._random.sample(self._logged, len(self._logged))  # the trainer itself goes in order
            model = self._policy()
            trainer = KTOTrainer(
                model,
                ref_model=warm_start.load(ANSWERS, self._base, self._numbers),
                args=KTOConfig(
                    output_dir=folder,
                    use_cpu=True,
                    bf16=False,
                    gradient_checkpointing=False,
                    learning_rate=self._learning_rate,
                    num_train_epochs=self._epochs,
                    per_device_train_batch_size=self._batch_size,
                    **_balanced(desirable, len(self._logged) - desirable),
                    seed=self._seed,
                    logging_strategy="no",
                    save_strategy="no",
                    report_to="none",
                    disable_tqdm=True,
                ),
                train_dataset=Dataset.from_list([_example(trajectory) for trajectory in shuffled]),
                processing_class=_tokenizer(),
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
            self._state = {name: tensor.detach().clone() for name, tensor in get_peft_model_state_dict(model).items()}
            model.save_pretrained(folder)
            return read_adapter(Path(folder))

    def _policy(self) -> Any:
        """As the last training left it; at first, a new adapter on the warm start."""
        base = warm_start.load(ANSWERS, self._base, self._numbers)
        names = sorted({name.rpartition(".")[2] for name in find_projections(base).names})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            model = get_peft_model(
                base, LoraConfig(r=self._rank, lora_alpha=2 * self._rank, lora_dropout=0.0, bias="none", target_modules=names, task_type="CAUSAL_LM")
            )
        if self._state is not None:
            set_peft_model_state_dict(model, self._state)
        return model


def _balanced(desirable: int, undesirable: int) -> dict[str, float]:
    """Weights as KTO's authors advise and TRL asks for: the desirable weigh 1 to 4/3 times as much as the others, all together."""
    if desirable < undesirable:
        return {"desirable_weight": EVENLY * undesirable / desirable}
    return {"undesirable_weight": desirable / undesirable / EVENLY}


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
