"""A few real processes that make updates of the tiny learner together over gloo, and what came of it on each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tiny_learner import Bench, make_bench
from torch.multiprocessing.spawn import start_processes

from online_sao.learner.ranks import ProcessGroup

Job = Callable[[Bench, Any], Any]
"""What rank 0 does with its learner, the others following: (bench, input) → result. A function of a module, so that a process can be told of it."""


def run_ranks(size: int, folder: Path, numbers: dict[str, Any], job: Job, given: Any, *, sharded: bool = False, break_sum: bool = False) -> Any:
    """Rank 0's result. Files in ``folder`` carry what goes in and out. ``break_sum``: gradients are averaged, as they must not be."""
    torch.save((numbers, given), folder / "in.pt")
    start_processes(_live, (size, folder, job, sharded, break_sum), nprocs=size, join=True, start_method="spawn")
    return torch.load(folder / "out.pt", weights_only=False)


def _live(rank: int, size: int, folder: Path, job: Job, sharded: bool, break_sum: bool) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=300))
    numbers, given = torch.load(folder / "in.pt", weights_only=False)
    if break_sum:
        ProcessGroup.sum_gradients = _averaged(ProcessGroup.sum_gradients)
    bench = make_bench(ranks=ProcessGroup(sharded=sharded), **numbers)
    if rank > 0:
        bench.learner.follow()
        torch.save({**bench.policy(), **bench.value()}, folder / f"weights-{rank}.pt")
    else:
        torch.save(job(bench, given), folder / "out.pt")
        bench.learner.ranks.dismiss()
    dist.barrier()


def _averaged(original: Callable[..., None]) -> Callable[..., None]:
    def average(ranks: ProcessGroup, parameters: list[torch.nn.Parameter]) -> None:
        original(ranks, parameters)
        for parameter in parameters:
            parameter.grad /= ranks.size

    return average
