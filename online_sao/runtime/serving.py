"""The composition root of the serving process: database, engine, services, jobs, learner child. Owns their order of start and end.

Knows nothing of HTTP, and must never reach online_sao.learner: the learner is another process, met in the database and the policy store only.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from online_sao.config import Settings
from online_sao.errors import LeaseLostError, NotReadyError, OnlineSAOError
from online_sao.experience.rewards import score_to_reward
from online_sao.inference.engine import InferenceEngine
from online_sao.inference.engines import build_engine
from online_sao.inference.renderer import Renderer
from online_sao.models import catalog
from online_sao.publishing import lifecycle
from online_sao.publishing.activator import Activator
from online_sao.runtime import tensorboard
from online_sao.runtime.clock import CautiousClock
from online_sao.runtime.meters import Meters
from online_sao.runtime.retention import INTERACTIONS_SECONDS, VERSIONS_SECONDS, Retention
from online_sao.runtime.scheduler import Job, Scheduler
from online_sao.runtime.supervisor import Supervisor
from online_sao.runtime.tensorboard import TensorBoardLog
from online_sao.service import score_rollup
from online_sao.service.alarms import AlarmService
from online_sao.service.chat import ChatService
from online_sao.service.chat_log import ChatLog
from online_sao.service.control import ControlService
from online_sao.service.erasure import ERASURE_SECONDS, ErasureService
from online_sao.service.evaluations import EvaluationService
from online_sao.service.feedback import FeedbackService
from online_sao.service.history import HistoryService
from online_sao.service.interactions import InteractionService
from online_sao.service.learner_watch import LearnerProcess, LearnerWatch
from online_sao.service.probes import Prober
from online_sao.service.status import StatusService
from online_sao.storage.migrations import require_current
from online_sao.storage.repositories import interactions, learner, leases, policies
from online_sao.storage.session import Database
from online_sao.storage.tables import PolicyVersionRow

logger = logging.getLogger(__name__)

T = TypeVar("T")

ENGINE_STOP_SECONDS = 2.0
"""What the engine is given to stop at shutdown before the process ends without it."""


class Serving:
    """``start`` once, ``stop`` once, from one event loop. Everything else may be read at any time in between."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meters = Meters()
        self.database = Database(settings.database_url)
        self.feedback = FeedbackService(self.database, settings)
        self.interactions = InteractionService(self.database)
        self.erasure = ErasureService(self.database)
        self.history = HistoryService(self.database, settings.reward)
        self._supervisor = Supervisor(settings.to_environment()) if settings.learning.as_child else None
        watch = LearnerWatch(self._learner_process, settings.alarms.learner_silent_seconds)
        self._ready_at: float | None = None
        self.status = StatusService(self.database, watch=watch)
        self._retention = Retention(self.database, settings.policy_store_dir, settings.retention, self.erasure)
        self.control = ControlService(self.database, settings.policy_store_dir, wake=self._wake_learner, watch=watch)
        self.alarms = AlarmService(self.database, settings, self.control.rollback, watch=watch)
        self.evaluations = EvaluationService(self.database)
        self._engine: InferenceEngine | None = None
        self._chat: ChatService | None = None
        self._renderer: Renderer | None = None
        self._problem: str | None = "the model is being loaded"
        self._clock = CautiousClock()
        self._tensorboard = TensorBoardLog(self.database, settings.tensorboard_dir) if settings.learning.tensorboard else None
        self._owner = leases.new_owner()
        self._scheduler = Scheduler()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def chat(self) -> ChatService:
        """Raises NotReadyError, saying what is missing, until the engine serves."""
        if self._chat is None or self._problem is not None:
            raise NotReadyError(f"The server is not ready: {self._problem}.")
        return self._chat

    @property
    def engine(self) -> InferenceEngine | None:
        """None until it serves."""
        return self._engine if self._chat is not None else None

    @property
    def describe_token(self) -> Callable[[int], tuple[str, tuple[int, ...] | None]] | None:
        """Token id → (text, bytes; None for a special token); None until the model is loaded."""
        return None if self._renderer is None else self._renderer.describe_token

    async def missing(self) -> dict[str, str]:
        """What keeps the server from answering chats: part → why. Empty: it is ready."""
        problem = self._problem
        if problem is None and self._engine is not None and not self._engine.healthy:
            problem = "the engine has failed"
        found = {} if problem is None else {"engine": problem}
        try:
            await asyncio.wait_for(self.database.ping(), timeout=2.0)
        except Exception as error:
            found["database"] = f"it does not answer: {error or type(error).__name__}"
        return found

    async def active_version(self) -> PolicyVersionRow:
        """The version that serves, from the database: known before the engine is."""
        async with self.database.read() as session:
            return await policies.active(session)

    async def start(self) -> None:
        """Check the database, become its one serving process, and begin to load the engine. Raises ConfigurationError; nothing needs a stop then."""
        try:
            await require_current(self.database)
            now = time.time()
            async with self.database.write() as session:
                await leases.acquire(session, "serving", self._owner, now)
                interrupted = await interactions.mark_leftovers_interrupted(session, now)
        except BaseException:
            await self.database.dispose()
            raise
        if interrupted:
            logger.warning("%d completions of a server that died were marked interrupted", interrupted)
        self._spawn(self._load())
        for job in (
            Job("serving lease", leases.RENEW_SECONDS, self._renew_lease),
            Job("score deadlines", 2.0, self._expire_overdue),
            Job("lease reaper", 5.0, self._release_lapsed),
            Job("version retention", VERSIONS_SECONDS, self._retention.sweep_versions),
            Job("interaction retention", INTERACTIONS_SECONDS, self._retention.sweep_interactions),
            Job("erasure", ERASURE_SECONDS, self.erasure.finish),
            Job("score roll-up", score_rollup.SECONDS, score_rollup.ScoreRollup(self.database).advance),
            Job("alarms", self.settings.alarms.poll_seconds, self.alarms.check),
        ):
            self._scheduler.add(job)
        if self._tensorboard is not None:
            self._scheduler.add(Job("tensorboard", tensorboard.SECONDS, self._tensorboard.advance))
        self._scheduler.start()

    async def drain(self) -> None:
        """Admit no chat any more, and return when the running ones have ended: by themselves, or abandoned after shutdown_grace_seconds."""
        if self._supervisor is not None:
            self._supervisor.terminate()
        if self._chat is not None:
            await self._chat.close(self.settings.server.shutdown_grace_seconds)

    async def stop(self) -> None:
        """End within shutdown_grace_seconds plus a few: running requests first, then jobs, engine and learner, at last the lease."""
        await self.drain()
        await self._scheduler.stop(grace_seconds=1.0)
        if self._tensorboard is not None:
            await self._tensorboard.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._engine is not None:
            try:
                await asyncio.wait_for(self._engine.stop(), timeout=ENGINE_STOP_SECONDS)
            except TimeoutError:
                logger.warning("the engine did not stop in %.1f s", ENGINE_STOP_SECONDS)
        if self._supervisor is not None:
            await self._supervisor.stop()
        async with self.database.write() as session:
            await leases.release(session, "serving", self._owner)
        await self.database.dispose()

    async def _load(self) -> None:
        started = time.monotonic()
        try:
            await self._load_engine()
        except Exception as error:
            self._problem = error.message if isinstance(error, OnlineSAOError) else f"the engine did not start ({type(error).__name__}: {error})"
            logger.exception("the engine did not start")
            return
        # The libraries' million objects never die: left to the collector, each full collection walks them for most of a second, the GIL held.
        gc.freeze()
        self._problem, self._ready_at = None, time.monotonic()
        logger.info("ready to serve after %.1f s", time.monotonic() - started)

    async def _load_engine(self) -> None:
        policy = self.settings.policy

        def prepare() -> tuple[Path, Renderer, str]:
            path = catalog.obtain(policy.model, policy.cache_dir)
            return path, Renderer.from_model(path), catalog.base_digest(path)

        path, renderer, base_digest = await _in_daemon_thread(prepare)
        engine = build_engine(self.settings.engine, path)
        activator = Activator(self.database, engine, self.settings.policy_store_dir, base_digest)
        self._engine = engine
        self._renderer = renderer
        await _start_engine(engine, activator)
        log = ChatLog(self.database, self.settings.reward, self._clock.latest)
        self._chat = ChatService(self.settings, engine, renderer, log, self.meters.completed)
        prober = Prober(self.database, engine, renderer, self.settings.evaluation)
        self._spawn(_logged(prober.run(), "probes"))

        async def activate() -> None:
            report = await activator.poll()
            if report is not None:
                self.meters.swapped(report)
                prober.version_changed()

        async def revive() -> None:
            if not engine.healthy:
                self._problem = "the engine has failed and is being started again"
                await engine.stop()
                await _start_engine(engine, activator)
                self._problem = None
                prober.version_changed()
                logger.warning("the engine serves again")

        self._scheduler.add(Job("policy activation", 0.5, activate))
        self._scheduler.add(Job("engine health", 1.0, revive))
        self._scheduler.add(Job("unwritten completions", 2.0, log.write_kept))
        if self._supervisor is not None:
            # Only now: two processes that load a model at once are both slow, and the first answer is waited for.
            self._scheduler.add(Job("learner supervision", 1.0, self._supervise))

    def _learner_process(self) -> LearnerProcess | None:
        """A separate learner is expected from when the engine first served: nobody is hurried before."""
        if self._supervisor is not None:
            return self._supervisor.process()
        return LearnerProcess(self._ready_at, running=True, gave_up=False, separate=True) if self.settings.learning.enabled else None

    def _wake_learner(self) -> None:
        if self._supervisor is not None:
            self._supervisor.retry()

    async def _supervise(self) -> None:
        """Keep the learner alive; once it has given up, see that its row says so: one that cannot read its settings could not write it."""
        assert self._supervisor is not None
        before = self._supervisor.gave_up
        await self._supervisor.poll()
        if not self._supervisor.gave_up or before:
            return
        async with self.database.write() as session:
            row = await learner.get(session)
            why = row.detail if row.phase == "stopped" and row.detail else "it cannot start; its last lines in the log say why"
            await learner.heartbeat(session, phase="stopped", detail=why, pid=None, now=time.time())

    async def _renew_lease(self) -> None:
        try:
            async with self.database.write() as session:
                await leases.renew(session, "serving", self._owner, time.time())
        except LeaseLostError as error:
            logger.critical("%s Ending: two serving processes on one database would undo each other's work.", error.message)
            os.kill(os.getpid(), signal.SIGTERM)

    async def _expire_overdue(self) -> None:
        reward = self.settings.reward
        default = None
        if reward.default_score is not None:
            default = score_to_reward(reward.default_score, reward.score_min, reward.score_max)
        async with self.database.write() as session:
            await lifecycle.expire_overdue(session, self._clock(), default)

    async def _release_lapsed(self) -> None:
        async with self.database.write() as session:
            released = await lifecycle.release_lapsed(session, self._clock())
        if released:
            logger.warning("%d trajectories of a lapsed claim are back in the queue", released)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _start_engine(engine: InferenceEngine, activator: Activator) -> None:
    """On the active version, and sure of it. Raises PolicyStoreError, ConfigurationError or EngineError."""
    start = await activator.start_version()
    await engine.start(start.policy_version, start.adapter_dir)
    await activator.confirm_started(start)


async def _logged(work: Coroutine[Any, Any, object], name: str) -> None:
    try:
        await work
    except Exception:
        logger.exception("%s failed", name)


async def _in_daemon_thread(function: Callable[[], T]) -> T:
    """Like asyncio.to_thread, but a process that ends does not wait for it: a first conversion of the model takes longer than Ctrl-C may."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except Exception as caught:
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name="load", daemon=True).start()
    return await future
