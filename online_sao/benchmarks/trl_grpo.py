"""One optimiser step of TRL's GRPO on given trajectories, as its own trainer takes it: the rival of the learner benchmark. The only import of TRL.

Owns how our trajectories become the trainer's prepared inputs, so that no generation and no reward function is part of a step. TRL's defaults, but
for what would make it slower here: gradient checkpointing off, fp32 instead of bf16, the fused optimiser, the whole batch in one padded pass.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from torch import nn

from online_sao.models.catalog import load_model, load_tokenizer
from online_sao.models.projections import find_projections
from online_sao.types import Trajectory

INSTALL = "pip install -c constraints.txt 'online-sao[bench]'"
REFERENCE_BETA = 0.04


def available() -> bool:
    return importlib.util.find_spec("trl") is not None


class GRPOStep:
    """``with_reference``: with the KL to the base model, which takes a forward pass of its own (TRL's ``beta`` above 0; its default is 0)."""

    def __init__(
        self, model_path: Path, trajectories: Sequence[Trajectory], *, rank: int, alpha: int, learning_rate: float, with_reference: bool, folder: Path
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about versions of a vLLM that takes no part
            from datasets import Dataset
            from trl import GRPOConfig, GRPOTrainer

            model = load_model(model_path)
            names = sorted({name.rpartition(".")[2] for name in find_projections(model).names})
            config = GRPOConfig(
                output_dir=str(folder),
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                optim="adamw_torch_fused",
                learning_rate=learning_rate,
                adam_beta2=0.95,
                per_device_train_batch_size=len(trajectories),
                num_generations=len(trajectories),
                max_completion_length=max(trajectory.num_action_tokens for trajectory in trajectories),
                beta=REFERENCE_BETA if with_reference else 0.0,
                report_to="none",
                disable_tqdm=True,
            )
            self._trainer = GRPOTrainer(
                model,
                reward_funcs=_no_reward,
                args=config,
                train_dataset=Dataset.from_list([{"prompt": "-"}] * len(trajectories)),
                processing_class=load_tokenizer(model_path),
                peft_config=LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", target_modules=names, task_type="CAUSAL_LM"),
            )
        self._inputs = _prepared(trajectories, self._trainer.processing_class.pad_token_id)
        self._trainer._prepare_inputs = lambda inputs: inputs
        self._trainer.current_gradient_accumulation_steps = 1
        self._trainer.create_optimizer()
        self._with_reference = with_reference

    def __call__(self) -> float:
        """One step. Returns the loss."""
        trainer, inputs = self._trainer, dict(self._inputs)
        if self._with_reference:
            inputs["ref_per_token_logps"] = self._reference(inputs)
        loss = trainer.training_step(trainer.model, inputs, None)
        nn.utils.clip_grad_norm_([p for p in trainer.model.parameters() if p.requires_grad], trainer.args.max_grad_norm)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        return float(loss)

    def _reference(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """As the trainer makes it for a new adapter: the model with adapters disabled, without gradient."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        trainer = self._trainer
        with torch.no_grad(), trainer.model.disable_adapter():
            logprobs: torch.Tensor = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, inputs["completion_ids"].size(1))[0]
        return logprobs


def _no_reward(**_: Any) -> list[float]:
    raise AssertionError("a step on prepared inputs asks for no reward")


def _prepared(trajectories: Sequence[Trajectory], pad: int) -> dict[str, torch.Tensor]:
    """Prompts padded on the left, answers on the right, as the trainer keeps them. Group-normalised rewards. Trajectories of one turn."""
    prompts, answers = [], []
    for trajectory in trajectories:
        first = trajectory.loss_mask.index(True)
        prompts.append(trajectory.token_ids[:first])
        answers.append(trajectory.token_ids[first:])
    rewards = torch.tensor([trajectory.reward for trajectory in trajectories])
    prompt_ids, prompt_mask = _padded(prompts, pad, left=True)
    completion_ids, completion_mask = _padded(answers, pad, left=False)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": (rewards - rewards.mean()) / (rewards.std() + 1e-4),
        "num_items_in_batch": completion_mask.sum(),
    }


def _padded(rows: Sequence[Sequence[int]], pad: int, *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), pad), torch.zeros(len(rows), width, dtype=torch.long)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[number, place] = torch.tensor(row)
        mask[number, place] = 1
    return ids, mask
