"""A tiny random chat model with the bundled model's tokenizer, and random adapters for any model: all that works on the real one, in milliseconds."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from filelock import FileLock
from transformers import LlamaConfig, LlamaForCausalLM

from online_sao.benchmarks.random_adapter import write_random_adapter
from online_sao.config import PolicySettings
from online_sao.models.catalog import load_tokenizer, obtain

__all__ = ["bundled_model", "tiny_model", "write_random_adapter"]

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
