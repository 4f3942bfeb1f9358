"""Has an engine serve the ACTIVE version, and serve it again when the engine has failed. Owns what is tried again and when, and what is said of it;
knows nothing of which version that is, nor of who leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from online_sao.errors import OnlineSAOError, StorageError
from online_sao.inference.engine import InferenceEngine
from online_sao.publishing.activator import StartVersion
from online_sao.runtime.backoff import Backoff

logger = logging.getLogger(__name__)

STORAGE_SECONDS = 1.0
"""Between two attempts to read which version it is to start on."""


class EngineStart:
    """``run`` once, ``revive`` about once a second then. ``confirm`` raises where the started engine serves something else than it was told to."""

    def __init__(
        self,
        engine: InferenceEngine,
        start_version: Callable[[], Awaitable[StartVersion]],
        confirm: Callable[[StartVersion], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._start_version = start_version
        self._confirm = confirm
        self.problem: str | None = None
        """Why the engine does not serve; None: it does, or is being started for the first time."""
        self.able = True
        """False from a start that failed to one that did not. While only the database is away, every process is as able as the others."""

    async def run(self) -> None:
        """Returns when the engine serves. What keeps it from that may pass, or be mended from outside: a mount that is late, a cluster's head that
        restarts."""
        backoff = Backoff()
        while True:
            try:
                await self._try()
                self.problem, self.able = None, True
                return
            except StorageError as error:
                self.problem, delay = error.message, STORAGE_SECONDS
            except Exception as error:
                problem = error.message if isinstance(error, OnlineSAOError) else f"the engine did not start ({type(error).__name__}: {error})"
                delay = backoff.next()
                # With its traceback once.
                logger.error("the engine did not start, and is tried again in %.0f s: %s", delay, problem, exc_info=problem != self.problem)
                self.problem, self.able = problem, False
            await asyncio.sleep(delay)

    async def revive(self) -> bool:
        """Whether the engine had failed; it serves again then."""
        if self._engine.healthy or self._engine.recovering:
            return False
        self.problem = "the engine has failed and is being started again"
        await self._engine.stop()
        await self.run()
        logger.warning("the engine serves again")
        return True

    async def _try(self) -> None:
        start = await self._start_version()
        try:
            await self._engine.start(start.policy_version, start.adapter_dir)
            await self._confirm(start)
        except Exception:
            await self._engine.stop()
            raise
