"""The learner process, which kills itself with SIGKILL at one named point. ``python faulty_learner.py POINT``, settings from the environment.

Each point is a function of the real code replaced by one that dies before, inside or after the original.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from online_sao.config import Settings
from online_sao.learner import checkpoints
from online_sao.learner.learner import Learner
from online_sao.publishing import gates, lifecycle, publisher
from online_sao.runtime import learning


def die(*_args: Any, **_kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        original(*args, **kwargs)
        die()

    return call


def hang(*_args: Any, **_kwargs: Any) -> None:
    """An update that never asks whether it was cancelled."""
    while True:
        time.sleep(1)


POINTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "before the update": (Learner, "update", die),
    "inside the update": (Learner, "_train_policy", die),
    "after the update": (gates, "check", die),
    "before the checkpoint's rename": (checkpoints, "_sync_tree", dying_after(checkpoints._sync_tree)),
    "after the checkpoint's rename": (publisher, "write_files", die),
    "after the publish's rename": (publisher, "write_files", dying_after(publisher.write_files)),
    "inside the transaction": (lifecycle, "finish_trained", die),
    "after the transaction": (checkpoints.Checkpoints, "prune", die),
    "never ending update": (Learner, "update", hang),
}

if __name__ == "__main__":
    owner, name, replacement = POINTS[sys.argv[1]]
    setattr(owner, name, replacement)
    sys.exit(learning.run(Settings()))
