"""A tiny random chat model with the bundled model's tokenizer, for benchmarks and tests of everything but what a model says. Owns its place."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from transformers import LlamaConfig, LlamaForCausalLM

from online_sao.config import PolicySettings
from online_sao.models.catalog import load_tokenizer, obtain

_FOLDER = "online-sao-tiny-model-2"


def tiny_model() -> Path:
    """Folder of a Llama of 2 layers and width 64 with the bundled tokenizer (vocabulary 49152, eos 2). Built once, kept in the temp directory."""
    return built_once(_FOLDER, _build)


def model_folder(name: str) -> Path:
    """Of "tiny", or of a model as policy.model names it."""
    return tiny_model() if name == "tiny" else obtain(name, PolicySettings().cache_dir)


def built_once(name: str, build: Callable[[Path], None]) -> Path:
    """The folder ``name`` in the temp directory, filled by ``build`` if it is not there yet; whole, or not there."""
    target = Path(tempfile.gettempdir()) / name
    with FileLock(f"{target}.lock"):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                build(Path(scratch) / "model")
                (Path(scratch) / "model").rename(target)
    return target


def tiny_config(tokenizer: Any, **changes: Any) -> LlamaConfig:
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,  # of 32, the smallest that vLLM serves on a CPU
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,  # wide enough that contexts matter and distributions are far from uniform
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return LlamaConfig(**{**sizes, **changes})


def _build(folder: Path) -> None:
    tokenizer = load_tokenizer(obtain("bundled", PolicySettings().cache_dir))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(tiny_config(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
