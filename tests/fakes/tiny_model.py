"""A tiny random chat model with the bundled model's tokenizer, and random adapters for any model: all that works on the real one, in milliseconds."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from filelock import FileLock
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from online_sao.config import PolicySettings
from online_sao.models.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, LORA_TARGETS, adapted_matrices
from online_sao.models.catalog import load_model, load_tokenizer, obtain

_FOLDER = "online-sao-tiny-model-1"


def bundled_model() -> Path:
    """The bundled model's folder, converted on first use."""
    return obtain("bundled", PolicySettings().cache_dir)


def tiny_model() -> Path:
    """Folder of a Llama of 2 layers and width 64 with the bundled tokenizer (vocabulary 49152, eos 2). Built once, kept in the temp directory."""
    target = Path(tempfile.gettempdir()) / _FOLDER
    with FileLock(f"{target}.lock"):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                _build(Path(scratch) / "model")
                (Path(scratch) / "model").rename(target)
    return target


def _build(folder: Path) -> None:
    tokenizer = load_tokenizer(bundled_model())
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.3,  # wide enough that contexts matter and distributions are far from uniform
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_random_adapter(model_path: Path, directory: Path, *, seed: int, size: float = 0.02, rank: int = 4) -> Path:
    """Write a PEFT LoRA adapter over every target projection of a model. ``size``: standard deviation of the change of each weight."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in adapted_matrices(load_model(model_path)).items():
        a = torch.randn(rank, weight.shape[1], generator=generator)
        b = torch.randn(weight.shape[0], rank, generator=generator) * (size / rank**0.5)
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / ADAPTER_WEIGHTS)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": list(LORA_TARGETS), "task_type": "CAUSAL_LM"}
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config))
    return directory
