"""Microbatches side by side, each on threads of its own. Owns how one process shares its cores out among them; knows no losses and no other process.

A small batch keeps one core busy and no more: every operator wakes the other threads for work of microseconds, and waits for the last of them. Two
microbatches that have nothing to do with each other until their gradients are added up need no waking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import local
from typing import TypeVar

import torch
from torch import Tensor, nn

from online_sao.learner.ranks import Ranks

T = TypeVar("T")
Gradients = tuple[Tensor | None, ...]
"""One for each trained parameter."""


class Threads(Ranks):
    """A world of one, whose ``threads`` (2 or more) each take a microbatch; where there are fewer, they share the threads out. Gradients are added up
    in the order of the microbatches, so that the result does not depend on who was first."""

    def __init__(self, threads: int) -> None:
        self.at_once = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="microbatch")
        self._mine = local()

    def each(self, count: int, work: Callable[[int], T], check: Callable[[], None], trained: Sequence[nn.Parameter] = ()) -> list[T]:
        if count == 1:
            return super().each(count, work, check, trained)
        threads = torch.get_num_threads()
        share = max(1, self.at_once // count)
        results = []
        try:
            for first in range(0, count, self.at_once):
                check()
                numbers = range(first, min(first + self.at_once, count))
                futures = [self._pool.submit(self._apart, work, number, trained, share) for number in numbers]
                wait(futures)
                for future in futures:
                    result, gradients = future.result()
                    results.append(result)
                    _add(trained, gradients)
        finally:
            torch.set_num_threads(threads)  # the number is of a thread, but the matrix library's may be of the process
        return results

    def backward(self, output: Tensor, gradient: Tensor | None = None) -> None:
        apart: tuple[Sequence[nn.Parameter], list[Gradients]] | None = getattr(self._mine, "apart", None)
        if apart is None:
            super().backward(output, gradient)
            return
        trained, found = apart
        found.append(torch.autograd.grad(output, trained, gradient, allow_unused=True))

    def _apart(self, work: Callable[[int], T], number: int, trained: Sequence[nn.Parameter], share: int) -> tuple[T, list[Gradients]]:
        """``work(number)`` in a thread of the pool, and the gradients it left."""
        torch.set_num_threads(share)
        found: list[Gradients] = []
        self._mine.apart = trained, found
        try:
            return work(number), found
        finally:
            self._mine.apart = None


def _add(parameters: Sequence[nn.Parameter], passes: Sequence[Gradients]) -> None:
    for gradients in passes:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
