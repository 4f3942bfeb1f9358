"""Random published adapters, for benchmarks and tests that need another version and not a trained one. Owns nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from online_sao.models.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, LORA_TARGETS, adapted_matrices
from online_sao.models.catalog import load_model


def write_random_adapter(model_path: Path, directory: Path, *, seed: int, size: float = 0.02, rank: int = 4) -> Path:
    """Write a PEFT LoRA adapter over every target projection of a model. ``size``: standard deviation of the change of each weight."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in adapted_matrices(load_model(model_path)).items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, weight.shape[1], generator=generator)
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(weight.shape[0], rank, generator=generator) * (size / rank**0.5)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / ADAPTER_WEIGHTS)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": list(LORA_TARGETS), "task_type": "CAUSAL_LM"}
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config))
    return directory
