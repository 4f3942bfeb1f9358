"""The processes of a learner of several ranks on one machine. Owns how ranks 1, 2, … are started, how all find each other, and what such a rank does.

Rank 0 is the learner process as it always was: it holds the lease, runs the learning cycle, and is the only one that knows database, checkpoints and
policy store. The others are its children, and end with it. Where somebody else has started and joined the ranks (runtime/cluster), nothing is started
here.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import ProcessContext, ProcessException, start_processes

from online_sao import logs
from online_sao.config import Settings
from online_sao.errors import RanksLostError
from online_sao.learner.ranks import ProcessGroup, Ranks
from online_sao.runtime.learner_setup import alone, build_learner

logger = logging.getLogger(__name__)

PING_SECONDS = 5.0
JOIN_SECONDS = 600.0
"""What the others are given to start and find rank 0: imports take a minute on a machine that is busy."""


def join(settings: Settings) -> Ranks:
    """On rank 0: all ranks of this learner, the others started. Raises RanksLostError where they do not come."""
    size = settings.learning.ranks
    if not dist.is_initialized():
        if size == 1:
            return alone(settings)
        # A file, not a port: whoever could write to it could make the ranks believe anything.
        folder = settings.storage.data_dir.absolute() / "ranks"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        store = FileStore(str(folder / "store"), size)
        # Daemons: they end with this process, by its own word or, where it is killed, by the kernel's and by the connection that is cut.
        told = (os.getpid(), settings.to_environment(), str(folder / "store"))
        others = start_processes(_follow_here, told, nprocs=size - 1, join=False, daemon=True, start_method="spawn")  # type: ignore[no-untyped-call]
        _await(others, store, [f"rank {rank}" for rank in range(1, size)])
        _initialise(settings, store, rank=0)
    return ProcessGroup(sharded=settings.learning.sharding == "fsdp")


def follow(settings: Settings) -> None:
    """On every other rank, its process group joined: until rank 0 dismisses it. Raises RanksLostError when rank 0 or another rank is gone."""
    build_learner(settings, ProcessGroup(sharded=settings.learning.sharding == "fsdp")).follow()


def backend(settings: Settings) -> str:
    """Tensors in main memory and everything that is pickled go over gloo, those of a GPU over NCCL."""
    return "cpu:gloo,cuda:nccl" if settings.learning.device == "cuda" else "gloo"


def set_threads(settings: Settings) -> None:
    """Torch threads of one rank: what is set, or its share of this machine's cores."""
    torch.set_num_threads(settings.learning.threads or max(1, (os.cpu_count() or 1) // settings.learning.ranks))


def _await(others: ProcessContext, store: FileStore, ranks: list[str]) -> None:
    """Until all have come, so that the process group's own patience is not spent on their imports."""
    deadline = time.monotonic() + JOIN_SECONDS
    while not store.check(ranks):
        try:
            others.join(timeout=0.2)
        except ProcessException as error:
            raise RanksLostError(f"A rank of the learner did not start: {error}") from error
        if time.monotonic() > deadline:
            raise RanksLostError(f"The ranks of the learner have not all started within {JOIN_SECONDS:.0f} s.")


def _initialise(settings: Settings, store: FileStore, rank: int) -> None:
    # On this machine alone: what the ranks say to each other is pickled, and nobody else must be able to say it.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    timeout = timedelta(seconds=settings.learning.rank_timeout_seconds)
    try:
        dist.init_process_group(backend(settings), store=store, rank=rank, world_size=settings.learning.ranks, timeout=timeout)
    except RuntimeError as error:
        raise RanksLostError(f"The ranks of the learner did not find each other: {error}") from error


def _follow_here(index: int, parent: int, environment: dict[str, str], store_file: str) -> None:
    """The whole life of rank ``index`` + 1, in a process of its own."""
    # The kernel sends it when rank 0 dies (start_processes asks for that), and it must work while this process waits inside a library.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getppid() != parent:
        os._exit(1)
    os.environ.update(environment)
    settings = Settings()
    logs.configure(settings.server.log_format)
    set_threads(settings)
    if settings.learning.device == "cuda":
        torch.cuda.set_device((index + 1) % torch.cuda.device_count())
    store = FileStore(store_file, settings.learning.ranks)
    try:
        store.set(f"rank {index + 1}", "here")
        _initialise(settings, store, rank=index + 1)
        follow(settings)
    except RanksLostError as error:
        logger.warning("rank %d ends: %s", index + 1, error.message)
        os._exit(1)
    except Exception:
        # Rank 0 sees only that it is gone.
        logger.exception("rank %d failed", index + 1)
        os._exit(1)
    os._exit(0)
