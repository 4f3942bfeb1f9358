"""Learner processes that kill themselves with SIGKILL at one named point. Each point is a function of the real code replaced by one that dies
before, inside or after the original.

Run as a script it is a nursery: it imports everything once and forks a learner for each line of JSON on stdin
(``{"point": null or a name, "environment": {...}, "log": "path"}``), answering with its pid and, when it has ended, its return code. Importing
torch takes ten times longer than all such a learner does.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import json
import logging
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import psutil

from online_sao.config import Settings
from online_sao.learner import checkpoints
from online_sao.learner.learner import Learner
from online_sao.learner.policy_training import PolicyTrainer
from online_sao.publishing import gates, lifecycle, publisher
from online_sao.runtime import learning


def die(*_args: Any, **_kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        original(*args, **kwargs)
        die()

    return call


def to_the_other_ranks(what: Callable[[psutil.Process], None], original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        for process in psutil.Process().children():
            what(process)
        return original(*args, **kwargs)

    return call


def hang(*_args: Any, **_kwargs: Any) -> None:
    """An update that never asks whether it was cancelled."""
    while True:
        time.sleep(1)


POINTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "before the update": (Learner, "update", die),
    "inside the update": (PolicyTrainer, "train", die),
    "after the update": (gates, "check", die),
    "before the checkpoint's rename": (checkpoints, "sync_tree", dying_after(checkpoints.sync_tree)),
    "after the checkpoint's rename": (publisher, "write_files", die),
    "after the publish's rename": (publisher, "write_files", dying_after(publisher.write_files)),
    "inside the transaction": (lifecycle, "finish_trained", die),
    "after the transaction": (checkpoints.Checkpoints, "prune", die),
    "rank 1 dies inside the update": (PolicyTrainer, "train", to_the_other_ranks(psutil.Process.kill, PolicyTrainer.train)),
    "rank 1 hangs inside the update": (PolicyTrainer, "train", to_the_other_ranks(psutil.Process.suspend, PolicyTrainer.train)),
    "never ending update": (Learner, "update", hang),
}


def live(request: dict[str, Any]) -> int:
    """The life of one learner, in the forked process."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["environment"])
    if request["point"] is not None:
        owner, name, replacement = POINTS[request["point"]]
        setattr(owner, name, replacement)
    logging.basicConfig(level=logging.INFO)
    try:
        return learning.run(Settings())
    except Exception:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(live(json.loads(line)))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
