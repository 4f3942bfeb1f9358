"""What only the leader of a database's serving processes does: its recurring jobs, and keeping the learner alive. Owns their start and end.

One ``LeaderWork`` lives from the moment a process begins to lead until it leads no more. Whether it has an engine is another matter: activation is
not here. Never reaches online_sao.learner.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from online_sao.config import Settings
from online_sao.experience.rewards import score_to_reward
from online_sao.publishing import lifecycle
from online_sao.runtime import tensorboard
from online_sao.runtime.clock import CautiousClock
from online_sao.runtime.retention import INTERACTIONS_SECONDS, VERSIONS_SECONDS, Retention
from online_sao.runtime.scheduler import Job, Scheduler
from online_sao.runtime.supervisor import LearnerKeeper
from online_sao.runtime.tensorboard import TensorBoardLog
from online_sao.service import score_rollup
from online_sao.service.alarms import AlarmService
from online_sao.service.chat_log import ChatLog
from online_sao.service.erasure import ERASURE_SECONDS, ErasureService
from online_sao.service.learner_watch import LearnerProcess
from online_sao.storage.repositories import instances, interactions, learner, leases
from online_sao.storage.session import Database

logger = logging.getLogger(__name__)

LEFTOVERS_SECONDS = 2.0
ALONE_SECONDS = 30.0
"""Between two looks for what processes that died left behind, where others share the database, and where this one is alone."""
DEAD_LOOKS = 10
"""A process of another machine is taken for dead when it gave no sign of life between so many looks, LEFTOVERS_SECONDS apart."""


class Leftovers:
    """Ends what processes that died left behind: their spools on this machine first, then the answers that are still open, and their rows."""

    def __init__(self, database: Database, log: ChatLog, owner: str) -> None:
        self._database = database
        self._log = log
        self._owner = owner
        self._seen: dict[str, tuple[float, int]] = {}
        """Process → its last sign of life, and how often in a row it was found unchanged. Counted, not timed: while the database is away nobody can
        give one."""

    async def end(self) -> None:
        """Raises StorageError."""
        try:
            async with self._database.read() as session:
                rows = await instances.all_rows(session)
        except BaseException:
            self._seen.clear()
            raise
        before, self._seen = self._seen, {}
        dead: list[str] = []
        for row in rows:
            heartbeat, looks = before.get(row.owner, (None, 0))
            self._seen[row.owner] = (row.heartbeat_at, looks + 1 if heartbeat == row.heartbeat_at else 0)
            if row.owner != self._owner and (leases.is_dead(row.owner) or self._seen[row.owner][1] >= DEAD_LOOKS):
                dead.append(row.owner)
        await self._log.adopt()
        async with self._database.write() as session:
            await instances.remove(session, dead)
            # Looked at again: a spool may take long, and who has begun to serve meanwhile lives.
            living = [self._owner, *(row.owner for row in await instances.all_rows(session))]
            interrupted = await interactions.mark_leftovers_interrupted(session, time.time(), living)
        if interrupted:
            logger.warning("%d completions of a server that died were marked interrupted", interrupted)


class LeaderWork:
    """``start`` once, ``supervise`` once the engine serves, ``stop`` once. ``leading`` is asked before each run of a job.
    ``keeper``: of the learner; None: there is to be none."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        clock: CautiousClock,
        alarms: AlarmService,
        erasure: ErasureService,
        leftovers: Leftovers,
        leading: Callable[[], bool],
        keeper: LearnerKeeper | None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self._leading = leading
        self._scheduler = Scheduler()
        self._keeper = keeper
        self._tensorboard = TensorBoardLog(database, settings.tensorboard_dir) if settings.learning.tensorboard else None
        retention = Retention(database, settings.policy_store_dir, settings.retention, erasure)
        self._jobs = [
            Job("left-overs", LEFTOVERS_SECONDS if settings.server.shared else ALONE_SECONDS, leftovers.end),
            Job("score deadlines", 5.0, self._expire_overdue),
            Job("lease reaper", 5.0, self._release_lapsed),
            Job("version retention", VERSIONS_SECONDS, retention.sweep_versions),
            Job("interaction retention", INTERACTIONS_SECONDS, retention.sweep_interactions),
            Job("erasure", ERASURE_SECONDS, erasure.finish),
            Job("score roll-up", score_rollup.SECONDS, score_rollup.ScoreRollup(database).advance),
            Job("alarms", settings.alarms.poll_seconds, alarms.check),
        ]
        if self._tensorboard is not None:
            self._jobs.append(Job("tensorboard", tensorboard.SECONDS, self._tensorboard.advance))

    def process(self) -> LearnerProcess | None:
        """What is known of the learner's process; None: there is to be none."""
        return self._keeper.process() if self._keeper is not None else None

    def start(self) -> None:
        for job in self._jobs:
            self._add(job)
        self._scheduler.start()

    def supervise(self) -> None:
        """Start the learner, and keep it alive. Not before the engine serves: two processes that load a model at once are both slow, and the first
        answer is waited for."""
        if self._keeper is not None:
            self._add(Job("learner supervision", 1.0, self._supervise))

    def wake_learner(self) -> None:
        """Something has changed: one that gave up is tried again."""
        if self._keeper is not None:
            self._keeper.retry()

    def terminate(self) -> None:
        """Ask the learner to end. Returns at once."""
        if self._keeper is not None:
            self._keeper.terminate()

    async def stop(self) -> None:
        """No further job, and no learner."""
        self.terminate()
        await self._scheduler.stop(grace_seconds=1.0)
        if self._tensorboard is not None:
            await self._tensorboard.close()
        if self._keeper is not None:
            await self._keeper.stop()

    def _add(self, job: Job) -> None:
        async def run(work: Callable[[], Awaitable[object]] = job.run) -> None:
            if self._leading():
                await work()

        self._scheduler.add(Job(job.name, job.seconds, run))

    async def _supervise(self) -> None:
        """Keep the learner alive; once it has given up, see that its row says so: one that cannot read its settings could not write it. Another
        process that is told to wake it takes that word back."""
        assert self._keeper is not None
        before = self._keeper.gave_up
        await self._keeper.poll()
        if not self._keeper.gave_up:
            return
        if before:
            async with self._database.read() as session:
                if (await learner.get(session)).phase != "stopped":
                    self._keeper.retry()
            return
        async with self._database.write() as session:
            row = await learner.get(session)
            why = row.detail if row.phase == "stopped" and row.detail else "it cannot start; its last lines in the log say why"
            await learner.heartbeat(session, phase="stopped", detail=why, pid=None, now=time.time())

    async def _expire_overdue(self) -> None:
        reward = self._settings.reward
        default = None
        if reward.default_score is not None:
            default = score_to_reward(reward.default_score, reward.score_min, reward.score_max)
        async with self._database.write() as session:
            await lifecycle.expire_overdue(session, self._clock(), default)

    async def _release_lapsed(self) -> None:
        async with self._database.write() as session:
            released = await lifecycle.release_lapsed(session, self._clock())
        if released:
            logger.warning("%d trajectories of a lapsed claim are back in the queue", released)
