"""How far apart two versions' weights are, from their files in the policy store. Owns the arithmetic; knows nothing of the database or of engines.

A version changes matrix W_i by ΔW_i = scale · B_i A_i. The difference of two such changes is again one product B A, of stacked factors, and its
Frobenius norm is ‖B A‖² = tr((BᵀB)(A Aᵀ)): exact, and computed in r x r matrices without ever forming one of the model's size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from online_sao.models.adapter import Adapter, read_adapter


@dataclass(frozen=True, slots=True)
class WeightDistance:
    """Frobenius norms over all adapted matrices: of the difference, and of each version's own distance from the base model."""

    difference: float
    from_base: float
    to_base: float


def weight_distance(from_folder: Path | None, to_folder: Path | None) -> WeightDistance:
    """Between two version folders (None: the base model). Reads both: not on the event loop. Raises PolicyStoreError if one cannot be read."""
    first = read_adapter(from_folder) if from_folder is not None else None
    second = read_adapter(to_folder) if to_folder is not None else None
    return WeightDistance(_distance(first, second), _distance(first, None), _distance(None, second))


def _distance(first: Adapter | None, second: Adapter | None) -> float:
    names = {name for adapter in (first, second) if adapter is not None for name in adapter.matrices}
    return math.sqrt(math.fsum(max(0.0, _squared(name, first, second)) for name in names))


def _squared(name: str, first: Adapter | None, second: Adapter | None) -> float:
    """‖ΔW_second − ΔW_first‖² of one matrix; an adapter that leaves it alone changes it by 0."""
    lefts: list[Tensor] = []
    rights: list[Tensor] = []
    for adapter, sign in ((first, -1.0), (second, 1.0)):
        if adapter is not None and name in adapter.matrices:
            a, b = (half.to(torch.float64) for half in adapter.matrices[name])
            lefts.append(sign * adapter.scale * b)
            rights.append(a)
    left, right = torch.cat(lefts, dim=1), torch.cat(rights, dim=0)
    return float(((left.T @ left) * (right @ right.T).T).sum())
