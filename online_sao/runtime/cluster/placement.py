"""The serving side's view of a learner that Ray places: begun, looked at, ended. Owns the actor; takes the place of runtime/supervisor.py.

The learner is a Ray actor whose constructor begins the learning, because the constructor is all that Ray runs again when it starts an actor anew. It
ends with the process that asked for it. Never imports the learner: the actor does, in its own process.

Ray is imported where it is used: when it is, it reads the environment that the session has prepared for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from online_sao.config import Settings
from online_sao.errors import OnlineSAOError
from online_sao.runtime.backoff import Backoff
from online_sao.runtime.cluster.learner_host import LearnerHost
from online_sao.runtime.cluster.session import Session
from online_sao.runtime.supervisor import HEALTHY_SECONDS, TERMINATE_SECONDS
from online_sao.service.learner_watch import LearnerProcess

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""Longest wait for the actor's answer; it may not have been placed yet."""
LOG_FORMAT = "ONLINE_SAO_SERVER__LOG_FORMAT"
PLACING_SECONDS = 60.0
"""After this long without an answer the operator is told what the actor asks of the cluster."""


class RayLearner:
    """``poll`` about once a second; ``stop`` once. The first poll joins the ``session``, which others may use too."""

    def __init__(self, settings: Settings, session: Session) -> None:
        self._settings = settings
        self._session = session
        self._actor: Any = None
        self._generation = 0
        """The session's, when the actor was placed."""
        self._report: asyncio.Future[dict[str, Any]] | None = None
        """The actor's answer that is waited for: one at a time, however long it takes."""
        self._running = False
        """There is an actor, or is about to be for the first time; not while Ray starts it again."""
        self._pid: int | None = None
        self._asked: dict[str, float] = {}
        self._started_at: float | None = None
        self._told = False
        self._out_of_reach = ""
        """Why it could not be asked, as it was logged last."""
        self._backoff = Backoff()
        self._next_start = 0.0
        self._stopping = False
        self.gave_up = False

    def process(self) -> LearnerProcess:
        return LearnerProcess(self._started_at, self._running, self.gave_up)

    async def poll(self) -> None:
        """Have the learner placed where it is not; notice one that was started again, or cannot work."""
        if self._stopping or self.gave_up:
            return
        if not self._reachable():
            self._forget()
        if self._actor is None:
            if time.monotonic() < self._next_start:
                return
            try:
                await self._session.open(self)
                self._generation = self._session.generation
                await self._session.call(self._place)
            except (OnlineSAOError, OSError, RuntimeError, ValueError) as error:
                self.gave_up = True
                logger.critical("The learner cannot be placed: %s Then resume the learner or restart the server. Serving goes on.", error)
                return
        from ray.exceptions import ActorUnavailableError, RayError

        try:
            report = await self._ask(ANSWER_SECONDS)
        except TimeoutError:
            await self._say_what_is_asked()
        except ActorUnavailableError as error:
            self._running = False
            if str(error) != self._out_of_reach:
                self._out_of_reach = str(error)
                logger.warning("the learner's actor cannot be reached now: %s", error)
        except RayError as error:
            await self._place_later(error)
        else:
            await self._notice(report)

    def retry(self) -> None:
        """Something has changed: a learner that was given up is placed again at the next poll."""
        if self.gave_up:
            self.gave_up, self._next_start = False, 0.0
            self._backoff.reset()

    def terminate(self) -> None:
        """Ask the learner to end, and place it no more. Returns at once."""
        self._stopping = True
        if self._reachable():
            self._actor.stop.remote()

    async def stop(self) -> None:
        """End the learner: as it is asked to, or else with its process. Then leave Ray."""
        self.terminate()
        if self._reachable():
            await self._end()
        await self._kill()
        await self._session.close(self)

    async def _end(self) -> None:
        from ray.exceptions import RayError

        deadline = time.monotonic() + TERMINATE_SECONDS
        try:
            while time.monotonic() < deadline:
                report = await self._ask(max(0.1, deadline - time.monotonic()))
                if report["ended"] or report["gave_up"]:
                    break
                await asyncio.sleep(0.1)
        except (TimeoutError, RayError):
            logger.warning("the learner did not end in %.1f s; killing it", TERMINATE_SECONDS)

    def _reachable(self) -> bool:
        """Whether there is an actor, in the cluster that is joined."""
        return self._actor is not None and self._session.problem is None and self._session.generation == self._generation

    async def _ask(self, seconds: float) -> dict[str, Any]:
        """Its report. Raises TimeoutError, after which the same answer is waited for."""
        if self._report is None:
            self._report = asyncio.ensure_future(self._actor.report.remote())
        await asyncio.wait({self._report}, timeout=seconds)
        if not self._report.done():
            raise TimeoutError
        report, self._report = self._report, None
        return report.result()

    async def _place_later(self, error: Exception) -> None:
        """What Ray does not start again by itself: later and later, if that goes on."""
        now = time.monotonic()
        if self._started_at is not None and now - self._started_at >= HEALTHY_SECONDS:
            self._backoff.reset()
        delay = self._backoff.next()
        logger.error("the learner's actor is gone, and is placed anew in %.0f s: %s", delay, error)
        await self._kill()
        self._next_start = now + delay

    def _place(self) -> None:
        import ray

        cluster, learning = self._settings.cluster, self._settings.learning
        alone = learning.ranks == 1  # several ranks are workers of their own; the actor only waits for them
        self._asked = {"num_cpus": cluster.learner_cpus if alone else 0, "num_gpus": cluster.learner_gpus if alone else 0}
        remote = ray.remote(max_restarts=-1, runtime_env={"env_vars": {"OMP_WAIT_POLICY": "PASSIVE"}}, **self._asked)(LearnerHost)
        # Not what only the server needs: its token is nobody else's business.
        environment = {
            name: value for name, value in self._settings.to_environment().items() if name == LOG_FORMAT or not name.startswith("ONLINE_SAO_SERVER__")
        }
        self._started_at, self._told = time.monotonic(), False
        self._actor, self._running = remote.remote(environment), True

    async def _notice(self, report: dict[str, Any]) -> None:
        self._out_of_reach = ""
        if report["gave_up"] is not None:
            self.gave_up = True
            logger.critical(
                "the learner cannot work as it is set up, and is not started again: %s Change what that names, then resume the learner, roll back, "
                "or restart the server. Serving goes on.",
                report["gave_up"],
            )
            await self._kill()
            return
        self._running = True
        if report["pid"] == self._pid:
            return
        if self._pid is not None:
            self._started_at = time.monotonic()
            logger.warning("Ray has started the learner again (pid %d)", report["pid"])
        else:
            logger.info("learner placed by Ray (pid %d)", report["pid"])
        self._pid = report["pid"]

    async def _say_what_is_asked(self) -> None:
        if self._pid is None and not self._told and self._started_at is not None and time.monotonic() - self._started_at > PLACING_SECONDS:
            import ray

            self._told = True
            logger.warning(
                "Ray has not started the learner in %.0f s. It asks for %s, and the cluster has %s free: see cluster.learner_cpus, learner_gpus.",
                PLACING_SECONDS,
                self._asked,
                await self._session.call(ray.available_resources),
            )

    async def _kill(self) -> None:
        if self._reachable():
            import ray

            actor = self._actor
            try:
                await self._session.call(lambda: ray.kill(actor, no_restart=True))
            except Exception as error:
                logger.debug("the learner's actor could not be killed: %s", error)
        self._forget()

    def _forget(self) -> None:
        if self._report is not None:
            self._report.cancel()
        self._actor, self._report, self._pid, self._running = None, None, None, False
