"""The actor that is the learner, or has Ray Train run its ranks. Owns what Ray runs again when it starts the actor anew: the constructor.

Imports next to nothing, so that the actor answers soon, and the learner by its name alone: the serving process has this module too, and must never
have that one.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import Any

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 3.0
"""From a failure of the learner, or of one of its ranks, to its next start."""


class LearnerHost:
    """The actor: the learner's process, or where there are several ranks, the one that has Ray Train run them."""

    def __init__(self, environment: dict[str, str]) -> None:
        os.environ.update(environment)
        self._stop = threading.Event()
        self._learner: Any = None
        threading.Thread(target=self._begin, name="learner", daemon=True).start()

    def _begin(self) -> None:
        """Beside the constructor, whose end is what Ray and the server wait for: the imports alone take many seconds."""
        try:
            from online_sao import logs
            from online_sao.config import Settings

            settings = Settings()
            logs.configure(settings.server.log_format)
            os.nice(settings.learning.niceness)  # of this thread and all that it starts
            self._learner = importlib.import_module("online_sao.runtime.cluster.learner").PlacedLearner(settings, self._stop)
            self._learner.run()
        except BaseException:
            logger.exception("the learner failed")
            self._stop.wait(AGAIN_SECONDS)
            os._exit(1)  # Ray starts the actor again, in a fresh process: whatever still runs in this one is gone with it

    def report(self) -> dict[str, Any]:
        gave_up, ended = (self._learner.gave_up, self._learner.ended) if self._learner is not None else (None, False)
        return {"pid": os.getpid(), "gave_up": gave_up, "ended": ended}

    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()
