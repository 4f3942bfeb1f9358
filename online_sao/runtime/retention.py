"""What is removed by itself, in the serving process: files of old policy versions, content of old interactions. Owns which, and in what order.

The row of a version says that its files are gone before the first of them is: a process killed in between leaves files that nobody counts on, which
the next sweep removes, and never a row that promises files which are not there. Choosing and saying so is one transaction, so that a rollback either
finds the files promised, and keeps them by standing on that version, or is refused. Knows nothing of what the files hold.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path

from online_sao.config import RetentionSettings
from online_sao.publishing import policy_store
from online_sao.service.erasure import ErasureService
from online_sao.storage.repositories import learner, policies
from online_sao.storage.session import Database

logger = logging.getLogger(__name__)

VERSIONS_SECONDS = 60.0
"""Between two sweeps of the policy store."""
INTERACTIONS_SECONDS = 600.0
"""Between two sweeps of the interactions."""
BATCH = 200
"""Interactions erased in one transaction: scores and answers being written wait no longer than it takes."""

_DAY = 24 * 3600.0


def removable(versions: Collection[int], *, active: int, head: int, settings: RetentionSettings) -> list[int]:
    """Which of ``versions`` (numbers of those that have files) may lose them, oldest first. Pure.

    ``active`` serves, ``head`` is what the learner stands on; after a rollback either may be far below the newest. Whatever is newer than one of them
    is kept: it has still to serve, or has just been rolled back and may be wanted again.
    """
    newest = set(sorted(versions)[-settings.keep_versions :])
    every = settings.keep_every
    return [v for v in sorted(versions) if 0 < v < min(active, head) and v not in newest and not (every and v % every == 0)]


class Retention:
    """``store``: the policy store's folder. ``clock`` returns Unix seconds. Run each sweep from one place at a time."""

    def __init__(
        self, database: Database, store: Path, settings: RetentionSettings, erasure: ErasureService, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._store = store
        self._settings = settings
        self._erasure = erasure
        self._clock = clock

    async def sweep_versions(self) -> list[str]:
        """Remove the files of versions that are to be kept no longer. Returns the names of the folders that were removed."""
        async with self._database.write() as session:
            active, head = await policies.active(session), await learner.get(session, lock=True)
            numbers = [row.version for row in await policies.with_files(session)]
            chosen = removable(numbers, active=active.version, head=head.head_version, settings=self._settings)
            await policies.mark_files_removed(session, chosen, self._clock())
            folders = await policies.removed_folders(session)
        removed = await asyncio.to_thread(policy_store.remove_versions, self._store, folders)
        if removed:
            logger.info("files of %d old policy versions removed: %s", len(removed), ", ".join(removed))
        return removed

    async def sweep_interactions(self) -> int:
        """Erase the content of interactions that are too old, where there is such a limit. Returns how many."""
        days = self._settings.interactions_days
        erased = 0
        while days is not None:
            count = await self._erasure.erase_older(days * _DAY, BATCH)
            erased += count
            if count < BATCH:
                break
        if erased:
            logger.info("%d interactions older than %g days lost their texts and tokens", erased, days)
        return erased
