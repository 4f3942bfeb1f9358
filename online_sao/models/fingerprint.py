"""Fingerprints of weights: do two processes hold the same policy? Owns the projection and its tolerance; knows nothing of files or versions.

One number per adapted matrix: f_i = u_iᵀ W_i v_i in float64, with sign vectors u_i, v_i drawn from the matrix name alone. A change of size d in each
of n elements moves f_i by about d·√n, so every matrix takes part and no bytes need be equal: rounding in another order of summation stays far below
the tolerance, the smallest training step far above it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-4
"""Largest difference, in any matrix, of two fingerprints of the same fp32 weights."""


@dataclass(frozen=True, slots=True)
class ServedDigest:
    """The fingerprint of weights in use. ``tolerance``: how far, in any matrix, their number format alone can take it from that in fp32."""

    values: tuple[float, ...]
    tolerance: float = TOLERANCE

    def matches(self, expected: Sequence[float]) -> bool:
        """Whether these are the weights that ``expected`` is the fp32 fingerprint of."""
        return matches(expected, self.values, self.tolerance)


def fingerprint(named_matrices: Mapping[str, Tensor]) -> tuple[float, ...]:
    """u_iᵀ W_i v_i of each W_i[out, in], in the order of the names. Read from the tensors as they are, one at a time."""
    with torch.no_grad():
        return tuple(_project(name, named_matrices[name]) for name in sorted(named_matrices))


def fingerprint_of_products(products: Iterable[tuple[str, Tensor]]) -> tuple[float, ...]:
    """The same from (name, W_i v_i [out]) in the order of the names, v_i = ``signs(f"{name}:v", in)``: for weights that can be applied, not read."""
    return tuple(float(signs(f"{name}:u", product.shape[0]).to(product.device) @ product.to(torch.float64)) for name, product in products)


def matches(expected: Sequence[float], served: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    """Whether two fingerprints are of the same weights. False for another number of matrices, and for anything not finite."""
    return len(expected) == len(served) and all(abs(e - s) <= tolerance for e, s in zip(expected, served, strict=True))


def _project(name: str, weight: Tensor) -> float:
    product = weight.to(torch.float64) @ signs(f"{name}:v", weight.shape[1]).to(weight.device)
    return fingerprint_of_products([(name, product)])[0]


def signs(seed: str, count: int) -> Tensor:
    """±1 [count] from the SHAKE-256 stream of ``seed``: the same with every library version and on every machine."""
    stream = bytearray(hashlib.shake_256(seed.encode()).digest(count))
    return (torch.frombuffer(stream, dtype=torch.uint8) & 1).to(torch.float64) * 2 - 1
