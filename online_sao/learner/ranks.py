"""The processes that make one update together. Owns how a batch is shared out among them, how gradients and results come together again, and how
rank 0 takes the others with it.

Rank 0 decides, the others keep nothing: whatever is computed together begins with the state of rank 0, and ends with the same result on every rank.
One process on its own is the plain case, ``Ranks``. Knows nothing of losses, databases, or of what starts the processes.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from online_sao.errors import OnlineSAOError, RanksLostError
from online_sao.models.backbone import Backbone

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """A method of the learner that all ranks run, with the state it starts from."""

    method: str
    arguments: tuple[Any, ...]
    state: Any


class Ranks:
    """A world of one: this process has the whole batch, and nobody to agree with."""

    rank = 0
    size = 1
    at_once = 1
    """Microbatches that are computed at the same time: a batch wants to be packed into no fewer."""
    sharded = False
    """Whether the frozen base is divided among the ranks: then every forward pass needs all of them."""

    def place(self, backbone: Backbone, device: str) -> None:
        """Divide the frozen base among the ranks and their ``device``s, where it is to be."""

    def lead(self, method: str, *arguments: Any, state: Callable[[], Any]) -> None:
        """On rank 0, before it runs ``method``: have the others run it too, from rank 0's ``state()``. Nothing on the others, which are being led."""

    def each(self, count: int, work: Callable[[int], T], check: Callable[[], None], trained: Sequence[nn.Parameter] = ()) -> list[T]:
        """``work(number)`` once for every number below ``count``, each on one rank; all results in order, on all ranks. ``check()`` comes before
        each, and raises where the work is to be given up. What ``work`` or ``check`` raises on one rank is raised on all. ``trained``: where ``work``
        leaves gradients."""
        results = []
        for number in range(count):
            check()
            results.append(work(number))
        return results

    def backward(self, output: Tensor, gradient: Tensor | None = None) -> None:
        """How ``work`` leaves its gradients in ``trained``: those of ``output``, in whose direction ``gradient`` says."""
        output.backward(gradient)  # type: ignore[no-untyped-call]

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """The gradients of all ranks added up, on all of them. Losses are sums over one N (docs/algorithm.md): nothing is averaged."""

    def ping(self) -> None:
        """On rank 0, every few seconds in which nothing is computed: see that all ranks are there, and let them see it. Raises RanksLostError."""

    def dismiss(self) -> None:
        """On rank 0, at the end: the others may go."""

    def receive(self) -> Call | None:
        """On the others: what to run next; None: it is over. Raises RanksLostError where rank 0 is gone."""
        return None


class ProcessGroup(Ranks):
    """The ranks of torch's default process group, which must be there. Its timeout bounds every wait, also for a rank that hangs. What is said
    between ranks is pickled: all of them must be ours."""

    def __init__(self, *, sharded: bool = False) -> None:
        self.rank, self.size, self.sharded = dist.get_rank(), dist.get_world_size(), sharded
        self.at_once = self.size

    def place(self, backbone: Backbone, device: str) -> None:
        if self.sharded:
            backbone.shard(init_device_mesh(device, (self.size,)))

    def lead(self, method: str, *arguments: Any, state: Callable[[], Any]) -> None:
        if self.rank == 0:
            self._tell(Call(method, arguments, state()))

    def each(self, count: int, work: Callable[[int], T], check: Callable[[], None], trained: Sequence[nn.Parameter] = ()) -> list[T]:
        """In rounds of one number a rank. A rank that has none in the last round stands by; where the base is sharded it goes through the round's
        first number again, and throws away what comes of it, because the others cannot compute without it."""
        results: dict[int, T] = {}
        error: Exception | None = None
        for first in range(0, count, self.size):
            self._agree(error or _raised(check))
            number = first + self.rank
            if number >= count and not self.sharded:
                continue
            try:
                if number < count:
                    results[number] = work(number)
                else:
                    with _gradients_aside(trained):
                        work(first)
            except Exception as caught:
                if self.sharded:
                    raise RanksLostError(f"Rank {self.rank} failed in the middle of a computation that all ranks share: {caught}") from caught
                error = caught
        self._agree(error)
        together = {number: result for share in self._gather(results) for number, result in share.items()}
        return [together[number] for number in range(count)]

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        # A rank that had nothing to compute has no gradients, and adds nothing.
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        with _others():
            dist.all_reduce(flat, op=dist.ReduceOp.SUM)
        for parameter, gradient in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter.dtype)

    def ping(self) -> None:
        self._tell(_PING)
        with _others():
            dist.barrier()

    def dismiss(self) -> None:
        self._tell(None)

    def receive(self) -> Call | None:
        while True:
            said: list[Any] = [None]
            with _others():
                dist.broadcast_object_list(said, src=0)
                if said[0] == _PING:
                    dist.barrier()
                    continue
            call: Call | None = said[0]
            return call

    def _tell(self, what: Any) -> None:
        with _others():
            dist.broadcast_object_list([what], src=0)

    def _agree(self, error: Exception | None) -> None:
        """Raise on all ranks what any of them has to complain of; the lowest rank's, where there are several."""
        errors = self._gather(None if error is None else _portable(error, self.rank))
        for found in errors:
            if found is not None:
                raise found if error is None or found is not errors[self.rank] else error

    def _gather(self, mine: Any) -> list[Any]:
        everyone: list[Any] = [None] * self.size
        with _others():
            dist.all_gather_object(everyone, mine)
        return everyone


_PING = "ping"


def _raised(check: Callable[[], None]) -> Exception | None:
    try:
        check()
    except Exception as error:
        return error
    return None


def _portable(error: Exception, rank: int) -> Exception:
    """The error as another process can be given it."""
    if isinstance(error, OnlineSAOError):
        try:
            pickle.dumps(error)
        except Exception:
            logger.debug("an error of rank %d cannot be pickled", rank)
        else:
            return error
    return RuntimeError(f"on rank {rank}: {type(error).__name__}: {error}")


@contextmanager
def _gradients_aside(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Inside, gradients are made and forgotten; what was there before is there afterwards."""
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


@contextmanager
def _others() -> Iterator[None]:
    """Around every exchange: whatever goes wrong there means that the ranks are no longer together, and nothing can be computed any more."""
    try:
        yield
    except RuntimeError as error:  # a closed connection, a timeout: the backends' own errors are all of this kind
        raise RanksLostError(f"The ranks of the learner have lost each other: {str(error).splitlines()[0]}") from error
