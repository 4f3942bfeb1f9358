"""The composition root of the serving process: database, engine, services, and what it does as a leader. Owns their order of start and end.

Knows nothing of HTTP, and must never reach online_sao.learner: the learner is another process, met in the database and the policy store only.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from online_sao.background import Background
from online_sao.config import Settings
from online_sao.errors import ConfigurationError, NotReadyError, OnlineSAOError, StorageError
from online_sao.inference.engine import InferenceEngine
from online_sao.inference.engines import build_engine
from online_sao.inference.renderer import Renderer
from online_sao.models import catalog
from online_sao.publishing.activator import Activator
from online_sao.publishing.follower import Follower
from online_sao.publishing.published import PublishedVersions
from online_sao.runtime.clock import CautiousClock
from online_sao.runtime.cluster.placement import RayLearner
from online_sao.runtime.cluster.replicas import build_pool
from online_sao.runtime.cluster.session import Session
from online_sao.runtime.engine_start import EngineStart
from online_sao.runtime.leadership import Condition, Leadership
from online_sao.runtime.leading import LeaderWork, Leftovers
from online_sao.runtime.meters import Meters
from online_sao.runtime.readiness import Readiness, judge
from online_sao.runtime.scheduler import Job, Scheduler
from online_sao.runtime.supervisor import LearnerKeeper, Supervisor
from online_sao.service.alarms import AlarmService
from online_sao.service.chat import ChatService
from online_sao.service.chat_log import ChatLog, SpoolState
from online_sao.service.control import ControlService
from online_sao.service.erasure import ErasureService
from online_sao.service.evaluations import EvaluationService
from online_sao.service.feedback import FeedbackService
from online_sao.service.history import HistoryService
from online_sao.service.interactions import InteractionService
from online_sao.service.learner_watch import LearnerProcess, LearnerWatch
from online_sao.service.pinned import PinnedVersions
from online_sao.service.probes import Prober
from online_sao.service.status import StatusService
from online_sao.storage.migrations import require_current
from online_sao.storage.repositories import learner, leases, policies
from online_sao.storage.session import Database
from online_sao.storage.spool import Spool
from online_sao.storage.tables import PolicyVersionRow

logger = logging.getLogger(__name__)

ENGINE_STOP_SECONDS = 2.0
"""What the engine is given to stop at shutdown before the process ends without it …"""
CLUSTER_STOP_SECONDS = 8.0
"""… and what a pool of replicas is, whose cluster ends with it."""


class Serving:
    """``start`` once, ``stop`` once, from one event loop. Everything else may be read at any time in between."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meters = Meters()
        self.database = Database(settings.database_url)
        self._clock = CautiousClock()
        self._owner = leases.new_owner()
        spool = Spool(settings.spool_dir, settings.storage.spool_bytes)
        self._log = ChatLog(self.database, settings.reward, self._clock.latest, spool, self._owner)
        self.feedback = FeedbackService(self.database, settings, waits=self._log.waits)
        self.interactions = InteractionService(self.database)
        self.erasure = ErasureService(self.database, settle=self._log.write_kept)
        self.history = HistoryService(self.database, settings.reward)
        self._ray = Session(settings.cluster, settings.learning.ranks) if settings.cluster.uses_ray else None
        self._learner_keeper = _learner_keeper(settings, self._ray)
        self._work: LeaderWork | None = None
        """While this process leads."""
        watch = LearnerWatch(self._learner_process, settings.alarms.learner_silent_seconds)
        self._ready_at: float | None = None
        self.status = StatusService(self.database, watch=watch)
        self.control = ControlService(self.database, settings.policy_store_dir, wake=self._wake_learner, watch=watch)
        self.alarms = AlarmService(self.database, settings, self.control.rollback, watch=watch)
        self.evaluations = EvaluationService(self.database)
        self._engine: InferenceEngine | None = None
        self.pinned: PinnedVersions | None = None
        """None where the engine serves one version alone."""
        self._chat: ChatService | None = None
        self._renderer: Renderer | None = None
        self._loading: str | None = "the model is being loaded"
        """What is said until the engine has served, and for good where it could not be built."""
        self._engine_start: EngineStart | None = None
        self._built = True
        self._leftovers = Leftovers(self.database, self._log, self._owner)
        # A connection of its own: behind a burst of requests that wait for the pool's, the lease would run out.
        self._lease_database = Database(settings.database_url) if self.database.dialect == "postgresql" else self.database
        self._leadership = Leadership(
            self._lease_database, self._owner, shared=settings.server.shared, condition=self._condition, begin=self._lead, end=self._follow
        )
        self._follower: Follower | None = None
        self._prober: Prober | None = None
        self._scheduler = Scheduler()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def _problem(self) -> str | None:
        """Why no chat is answered."""
        return (self._engine_start.problem if self._engine_start is not None else None) or self._loading

    @property
    def _able(self) -> bool:
        """Whether this process may lead: one whose engine cannot start must not keep others from it."""
        return self._built and (self._engine_start is None or self._engine_start.able)

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

    async def readiness(self) -> Readiness:
        """Whether chats are answered now, and what is missing."""
        problem = self._problem
        if problem is None and self._engine is not None and not self._engine.healthy:
            problem = "no engine replica serves; they are being started again" if self._engine.recovering else "the engine has failed"
        return await judge(problem, self.database, self._log, self.settings.engine.default_max_tokens)

    @property
    def leading(self) -> bool:
        """Whether this process runs the jobs, activation and the learner."""
        return self._leadership.leading

    @property
    def spool(self) -> SpoolState:
        """What waits for the database."""
        return self._log.state()

    async def active_version(self) -> PolicyVersionRow:
        """The version that serves, from the database: known before the engine is."""
        async with self.database.read() as session:
            return await policies.active(session)

    async def start(self) -> None:
        """Check the database, become its one serving process or one of those that share it, and begin to load the engine. Raises ConfigurationError;
        nothing needs a stop then."""
        try:
            await require_current(self.database)
            await self._leadership.poll()
            # What a process that died had kept of its answers ends them; only what is then still open was interrupted.
            await self._log.adopt()
            if self._leadership.leading:
                await self._leftovers.end()
        except BaseException:
            if self._work is not None:
                await self._work.stop()
            await self._close()
            raise
        self._spawn(self._load())
        self._scheduler.add(Job("serving lease", self._leadership.poll_seconds, self._leadership.poll))
        self._scheduler.add(Job("unwritten completions", 1.0, self._log.write_kept))
        self._scheduler.start()

    async def drain(self) -> None:
        """Admit no chat any more, and return when the running ones have ended: by themselves, or abandoned after shutdown_grace_seconds."""
        if self._work is not None:
            self._work.terminate()
        if self._chat is not None:
            await self._chat.close(self.settings.server.shutdown_grace_seconds)

    async def stop(self) -> None:
        """End within shutdown_grace_seconds plus a few: running requests first, then jobs, engine and learner, at last the lease."""
        await self.drain()
        await self._scheduler.stop(grace_seconds=1.0)
        if self._work is not None:
            await self._work.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._engine is not None:
            seconds = CLUSTER_STOP_SECONDS if self.settings.cluster.replicas else ENGINE_STOP_SECONDS
            try:
                await asyncio.wait_for(self._engine.stop(), timeout=seconds)
            except TimeoutError:
                logger.warning("the engine did not stop in %.1f s", seconds)
        try:
            await self._log.write_kept()
            await self._leadership.leave()
        except StorageError as error:
            logger.warning("ending without the database: %s What waits for it is written at the next start.", error.message)
        await self._close()

    async def _close(self) -> None:
        self._log.close()
        for database in {self.database, self._lease_database}:
            await database.dispose()

    async def _load(self) -> None:
        started = time.monotonic()
        try:
            await self._load_engine()
        except Exception as error:
            self._loading = error.message if isinstance(error, OnlineSAOError) else f"the engine could not be built ({type(error).__name__}: {error})"
            self._built = False
            logger.exception("the engine could not be built")
            return
        # The libraries' million objects never die: left to the collector, each full collection walks them for most of a second, the GIL held.
        gc.freeze()
        self._loading, self._ready_at = None, time.monotonic()
        logger.info("ready to serve after %.1f s", time.monotonic() - started)

    async def _load_engine(self) -> None:
        policy = self.settings.policy

        def prepare() -> tuple[Path, Renderer, str]:
            path = catalog.obtain(policy.model, policy.cache_dir)
            return path, Renderer.from_model(path), catalog.base_digest(path)

        path, renderer, base_digest = await Background().run(prepare)  # a first conversion takes longer than Ctrl-C may: nobody joins that thread
        engine = _build_engine(self.settings, path, self._ray)
        published = PublishedVersions(self.settings.policy_store_dir, base_digest)
        activator = Activator(self.database, engine, published, self._leadership.require)
        follower = self._follower = Follower(self.database, engine, published)
        self._engine = engine
        self._renderer = renderer
        engine_start = self._engine_start = EngineStart(
            engine, lambda: (activator if self._leadership.leading else follower).start_version(), activator.confirm_started
        )
        await engine_start.run()
        self.pinned = PinnedVersions(self.database, published) if engine.serves_pinned else None
        self._chat = ChatService(self.settings, engine, renderer, self._log, self.pinned, self.meters.completed)
        prober = self._prober = Prober(self.database, engine, renderer, self.settings.evaluation, lambda: self._leadership.leading)
        self._spawn(_logged(prober.run(), "probes"))

        async def keep_version() -> None:
            """On the ACTIVE version first, whoever activated it; then, as the leader, on what waits to become that."""
            if follower.problem is None and engine.healthy:
                async with self.database.read() as session:
                    if await policies.is_settled(session, engine.policy_version):
                        return
            report = await follower.poll()
            if report is None and self._leadership.leading:
                report = await activator.poll()
            if report is not None:
                self.meters.swapped(report)
                prober.version_changed()

        async def revive() -> None:
            if await engine_start.revive():
                prober.version_changed()

        self._scheduler.add(Job("policy activation", 1.0, keep_version))
        self._scheduler.add(Job("engine health", 1.0, revive))
        if self._work is not None:
            self._work.supervise()

    def _learner_process(self) -> LearnerProcess | None:
        """A separate learner is expected from when the engine first served: nobody is hurried before."""
        if self.settings.learning.as_child:
            return self._work.process() if self._work is not None else None
        return LearnerProcess(self._ready_at, running=True, gave_up=False, separate=True) if self.settings.learning.enabled else None

    async def _lead(self) -> None:
        keeper = self._learner_keeper() if self._learner_keeper is not None else None
        work = LeaderWork(
            self.settings, self.database, self._clock, self.alarms, self.erasure, self._leftovers, lambda: self._leadership.leading, keeper
        )
        work.start()
        if self._chat is not None:
            work.supervise()
        if self._prober is not None:
            self._prober.version_changed()  # nobody else evaluates it now
        self._work = work

    async def _follow(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            await work.stop()
        self.alarms.forget()

    def _condition(self) -> Condition:
        engine, follower = self.engine, self._follower
        problem = self._problem or (follower.problem if follower is not None else None)
        return Condition(None if engine is None else engine.policy_version, problem, self._log.state().records, self._able)

    async def _wake_learner(self) -> None:
        if self._work is not None:
            self._work.wake_learner()
            return
        # The leader is another process: one that has given up sees that its last word does not stand any more.
        async with self.database.write() as session:
            if (await learner.get(session)).phase == "stopped":
                await learner.heartbeat(session, phase="starting", detail="asked to start again", pid=None, now=time.time())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _build_engine(settings: Settings, model_path: Path, ray: Session | None) -> InferenceEngine:
    if not settings.cluster.replicas:
        return build_engine(settings.engine, model_path, settings.policy.lora_rank)
    assert ray is not None
    return build_pool(settings, ray)


def _learner_keeper(settings: Settings, ray: Session | None) -> Callable[[], LearnerKeeper] | None:
    """What makes the keeper of a learner; None: there is to be none. Raises ConfigurationError."""
    if not settings.learning.as_child:
        return None
    if not settings.cluster.place_learner:
        return lambda: Supervisor(settings.to_environment())
    if importlib.util.find_spec("ray") is None:
        raise ConfigurationError("cluster.place_learner needs Ray: pip install 'online-sao[ray]', or set cluster.place_learner to false.")
    assert ray is not None
    return lambda: RayLearner(settings, ray)


async def _logged(work: Coroutine[Any, Any, object], name: str) -> None:
    try:
        await work
    except Exception:
        logger.exception("%s failed", name)
