"""What an operator may tell the system: pausing and resuming the learner (it reads its row before it claims), and the list of policy versions."""

from __future__ import annotations

import time
from collections.abc import Callable

from online_sao.errors import InvalidRequestError
from online_sao.service.status import LearnerStatus, VersionStatus, learner_status, version_statuses
from online_sao.storage.repositories import learner, policies
from online_sao.storage.session import Database

_MAX_REASON = 500


class ControlService:
    """``clock`` returns Unix seconds."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def pause_learner(self, reason: str | None = None) -> LearnerStatus:
        """No batch is claimed from now on; an update under way is finished and published. Serving and scoring go on. Pausing twice is no error."""
        reason = (reason or "").strip() or "paused by the operator"
        if len(reason) > _MAX_REASON or "\0" in reason or any("\ud800" <= character <= "\udfff" for character in reason):
            raise InvalidRequestError(f"reason must be at most {_MAX_REASON} characters of text.", param="reason")
        async with self._database.write() as session:
            await learner.pause(session, reason)
            return learner_status(await learner.get(session), self._clock())

    async def resume_learner(self) -> LearnerStatus:
        """Claiming goes on. After a failed self-check the learner checks again first, and stops again if nothing has changed."""
        async with self._database.write() as session:
            await learner.resume(session)
            return learner_status(await learner.get(session), self._clock())

    async def versions(self, *, limit: int = 50, before: int | None = None) -> tuple[VersionStatus, ...]:
        """Policy versions, newest first; ``before``: only those older than that version."""
        async with self._database.read() as session:
            return await version_statuses(session, await policies.newest(session, limit, before=before))
