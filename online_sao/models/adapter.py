"""Published adapters and their merge into a served model. Owns the PEFT file format as read here and the rule that merged weights are always computed
from the pristine ones. Knows nothing of versions, engines or how an adapter was trained.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from online_sao.errors import PolicyStoreError
from online_sao.models.projections import find_projections

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The adapted projections as Llama and its kin name them (models.projections finds those of any other)."""
_PREFIX = "base_model.model."
_UNSUPPORTED = ("use_dora", "fan_in_fan_out", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias", "layer_replication")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter. ``matrices`` maps a module path such as ``model.layers.0.self_attn.q_proj`` to (A[r, in], B[out, r]); the adapted weight is
    W0 + ``scale`` · B @ A."""

    matrices: Mapping[str, tuple[Tensor, Tensor]]
    scale: float


def read_adapter(directory: Path) -> Adapter:
    """Read a PEFT adapter folder. Raises PolicyStoreError if it is incomplete, of an unsupported kind, or holds non-finite numbers."""
    config = _read_config(directory)
    try:
        tensors = load_file(directory / ADAPTER_WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise PolicyStoreError(f"The adapter weights in {directory} cannot be read: {error}") from error
    halves: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, separator, half = key.removesuffix(".weight").removeprefix(_PREFIX).rpartition(".lora_")
        if not separator or half not in ("A", "B"):
            raise PolicyStoreError(f"The adapter in {directory} holds {key!r}, which is no LoRA matrix.")
        if not torch.isfinite(tensor).all():
            raise PolicyStoreError(f"The adapter in {directory} holds non-finite numbers in {key!r}.")
        halves.setdefault(name, {})[half] = tensor
    incomplete = [name for name, pair in halves.items() if len(pair) != 2]
    if incomplete or not halves:
        raise PolicyStoreError(f"The adapter in {directory} is incomplete: {incomplete[:3] or 'it is empty'}.")
    rank = int(config["r"])
    scale = float(config["lora_alpha"]) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return Adapter({name: (pair["A"], pair["B"]) for name, pair in halves.items()}, scale)


def _read_config(directory: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((directory / ADAPTER_CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise PolicyStoreError(f"The adapter configuration in {directory} cannot be read: {error}") from error
    if config.get("peft_type") != "LORA" or "r" not in config or "lora_alpha" not in config:
        raise PolicyStoreError(f"The adapter in {directory} is no LoRA adapter.")
    unsupported = [name for name in _UNSUPPORTED if config.get(name)]
    if unsupported or config.get("bias", "none") != "none":
        raise PolicyStoreError(f"The adapter in {directory} uses {', '.join(unsupported) or 'bias'}, which cannot be merged here.")
    return config


def adapted_matrices(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model that adapters may change: module path → W[out, in], detached (writing to one changes the model), sorted by path."""
    found: dict[str, Tensor] = {}
    for name in sorted(find_projections(model).names):
        weight: Any = model.get_submodule(name).weight
        found[name] = weight.detach()
    return found


def merged(weight: Tensor, adapter: Adapter, name: str, out: Tensor | None = None) -> Tensor:
    """W0 + scale · B @ A for one matrix; W0 itself where the adapter leaves it alone. Written to ``out`` (which must not overlap W0) if given."""
    if name not in adapter.matrices:
        return weight if out is None else out.copy_(weight)
    a, b = (half.to(weight) for half in adapter.matrices[name])
    return torch.addmm(weight, b, a, alpha=adapter.scale, out=out)


class MergedView(Mapping[str, Tensor]):
    """The weights an adapter gives, computed one matrix at a time when read: for fingerprints of weights nobody serves yet."""

    def __init__(self, pristine: Mapping[str, Tensor], adapter: Adapter) -> None:
        check_fits(pristine, adapter)
        self._pristine = pristine
        self._adapter = adapter

    def __getitem__(self, name: str) -> Tensor:
        with torch.no_grad():
            return merged(_whole(self._pristine[name]), self._adapter, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pristine)

    def __len__(self) -> int:
        return len(self._pristine)


def _whole(weight: Tensor) -> Tensor:
    """A matrix that is divided among processes, put together; all of them must ask."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


class MergedWeights:
    """Serves one model under one adapter after another. Keeps a pristine copy of every adapted matrix, so that no rounding adds up over swaps and the
    base comes back bit for bit."""

    def __init__(self, model: nn.Module) -> None:
        self.served = adapted_matrices(model)
        self.pristine = {name: weight.clone() for name, weight in self.served.items()}

    def apply(self, adapter: Adapter | None) -> None:
        """Write W0 + scale · B @ A into the model, in place; None writes W0.

        Raises PolicyStoreError, having written nothing, if the adapter does not fit the model.
        """
        if adapter is not None:
            check_fits(self.pristine, adapter)
        with torch.no_grad():
            for name, weight in self.served.items():
                if adapter is None:
                    weight.copy_(self.pristine[name])
                else:
                    merged(self.pristine[name], adapter, name, out=weight)


def check_fits(pristine: Mapping[str, Tensor], adapter: Adapter) -> None:
    """Raise PolicyStoreError unless every matrix of the adapter has one of the model's to change, of the same shape."""
    for name, (a, b) in adapter.matrices.items():
        if name not in pristine:
            raise PolicyStoreError(f"The adapter changes {name!r}, which this model does not have.")
        expected = tuple(pristine[name].shape)
        if (b.shape[0], a.shape[1]) != expected or a.shape[0] != b.shape[1]:
            raise PolicyStoreError(f"The adapter's {name!r} is {tuple(b.shape)} x {tuple(a.shape)}, the model's weight is {expected}.")
