"""Which matrices of a causal model are adapted, whatever the architecture calls them. Owns how they are found and which architectures are refused.

They are the linear layers inside the repeated blocks, told apart by their place: attention's, and all others (the MLP's). Embeddings and the output
matrix, often tied, are never adapted. Knows nothing of adapters or files.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers.pytorch_utils import Conv1D

from online_sao.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Projections:
    """Module paths from the model, in the model's order."""

    attention: tuple[str, ...]
    mlp: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.attention, *self.mlp)


def find_projections(model: nn.Module) -> Projections:
    """Raises ConfigurationError, saying why, where a model has no such layers in attention or in its MLP."""
    kind = type(model).__name__
    path, layers = find_blocks(model)
    if any(isinstance(module, Conv1D) for module in layers.modules()):
        raise ConfigurationError(
            f"{kind} keeps its projections transposed (Conv1D, as GPT-2 does), which cannot be merged here. Choose a model built of linear layers."
        )
    linear = [f"{path}.{name}" for name, module in layers.named_modules() if isinstance(module, nn.Linear)]
    attention = tuple(name for name in linear if _in_attention(name))
    mlp = tuple(name for name in linear if not _in_attention(name))
    for found, what in ((attention, "attention"), (mlp, "MLP")):
        if not found:
            raise ConfigurationError(
                f"{kind} has no linear layers in its {what} (mixtures of experts keep theirs in another form), so it cannot learn here. "
                "Choose a dense decoder-only transformer, such as a Llama, Qwen or GPT-NeoX."
            )
    return Projections(attention, mlp)


def find_blocks(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """The repeated blocks, and the path to them. Raises ConfigurationError where a model has none."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ConfigurationError(
            f"{type(model).__name__} has no repeated blocks, so nothing of it can be adapted. Choose a decoder-only transformer."
        )
    return max(lists, key=lambda item: len(item[1]))


def _in_attention(name: str) -> bool:
    return any("attn" in part or "attention" in part for part in name.split("."))
