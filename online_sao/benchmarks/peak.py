"""What this machine can do at best: matrix products of a model's own shapes, and bytes read from memory. With torch's threads as they are set.

Owns the measurements, no judgement.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

REPETITIONS = 7


def matmul_peak(tokens: int, matrices: Sequence[tuple[int, int]], repetitions: int = REPETITIONS) -> float:
    """FLOP/s of fp32 products [tokens, in] x [in, out] (as a forward pass makes them) and back (as a gradient does), over all ``matrices`` (in, out),
    each as often as it is given. Median of the repetitions of each kind."""
    flops, seconds = 0.0, 0.0
    for (inputs, outputs), count in Counter(matrices).items():
        x, weight, gradient = torch.randn(tokens, inputs), torch.randn(outputs, inputs), torch.randn(tokens, outputs)
        for product in (_forward(x, weight), _backward(gradient, weight)):
            seconds += count * median_seconds(product, repetitions)
            flops += count * 2.0 * tokens * inputs * outputs
    return flops / seconds


def products_rate(tokens: int, weights: Sequence[torch.Tensor], repetitions: int = REPETITIONS) -> float:
    """As ``matmul_peak``, through a model's own ``weights`` [out, in] one after the other: each is read from memory again, as in a real pass."""
    pairs = [(torch.randn(tokens, weight.shape[1]), torch.randn(tokens, weight.shape[0]), weight.detach()) for weight in weights]

    def products() -> None:
        for x, gradient, weight in pairs:
            functional.linear(x, weight)
            gradient @ weight

    return 4.0 * tokens * sum(weight.numel() for weight in weights) / median_seconds(products, repetitions)


def read_bandwidth(megabytes: int, repetitions: int = REPETITIONS) -> float:
    """Bytes/s of reading ``megabytes`` once, by matrix-vector products: what decoding one token does with weights. Median of the repetitions."""
    rows = 1024
    matrix = torch.randn(megabytes * 2**20 // 4 // rows, rows)
    vector = torch.randn(rows)
    return matrix.numel() * 4 / median_seconds(lambda: torch.mv(matrix, vector), repetitions)


def median_seconds(work: Callable[[], object], repetitions: int) -> float:
    """The first call, which touches what the later ones find ready, does not count."""
    work()
    seconds = []
    for _ in range(repetitions):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _forward(x: torch.Tensor, weight: torch.Tensor) -> Callable[[], object]:
    return lambda: functional.linear(x, weight)


def _backward(gradient: torch.Tensor, weight: torch.Tensor) -> Callable[[], object]:
    return lambda: gradient @ weight
