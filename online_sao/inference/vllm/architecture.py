"""What of a model adapters may change, read from its configuration alone: for the two processes of the vLLM engine, neither of which holds the model
as transformers builds it. Knows no vLLM."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from online_sao.models.adapter import adapted_matrices


@lru_cache(maxsize=4)
def adapted_without_numbers(folder: Path) -> dict[str, Tensor]:
    """models.adapter.adapted_matrices of the model in ``folder``, on the meta device: names and shapes."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    return adapted_matrices(model)


def projection_shapes(folder: Path) -> dict[str, tuple[int, int]]:
    """Module path → (out, in)."""
    return {name: (weight.shape[0], weight.shape[1]) for name, weight in adapted_without_numbers(folder).items()}
