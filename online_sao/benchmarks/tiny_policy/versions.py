"""The published versions that may still answer. Owns how one is made of a learner, as the service does it, and which are forgotten."""

from __future__ import annotations

import tempfile
from pathlib import Path

from online_sao.learner.learner import Learner
from online_sao.models.adapter import Adapter, read_adapter


class Versions:
    """Version 0 is the base. ``lag``: how many updates the version that answers is behind the one that is trained."""

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self.adapters: dict[int, Adapter | None] = {0: None}

    def answering(self, update: int) -> int:
        """The version that gives the answers which this update (from 1) learns from; the base, while there are not so many."""
        return max(0, update - 1 - self._lag)

    def publish(self, update: int, learner: Learner) -> None:
        """What the learner is after this update, by the adapter's files, read back. Versions that no later answer begins with are forgotten."""
        with tempfile.TemporaryDirectory() as folder:
            learner.export_adapter(Path(folder))
            self.adapters[update] = read_adapter(Path(folder))
        self.adapters = {version: adapter for version, adapter in self.adapters.items() if version >= update - self._lag}
