"""Where the learner stands: brought up to date at start, and loaded whenever the database says it stands elsewhere.

Owns the rule of docs/design.md §7.3 that checkpoints newer than the database are applied before anything is claimed, and that those of a discarded
update are removed. Knows nothing of batches.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from online_sao.errors import ConfigurationError
from online_sao.learner.checkpoints import Checkpoint, Checkpoints
from online_sao.learner.learner import Learner
from online_sao.publishing import lifecycle, policy_store, publisher
from online_sao.publishing.publisher import CommittedUpdate
from online_sao.runtime.background import Background
from online_sao.runtime.batches import Head
from online_sao.storage.repositories import learner as learner_row
from online_sao.storage.repositories import trajectories, updates
from online_sao.storage.session import Database
from online_sao.storage.tables import LearnerRow

logger = logging.getLogger(__name__)


class LearnerRecovery:
    """Call only while holding the learner lease: it takes over what a dead learner left."""

    def __init__(self, database: Database, learner: Learner, compute: Background, checkpoints: Checkpoints, store: Path) -> None:
        self._database = database
        self._learner = learner
        self._compute = compute
        self._checkpoints = checkpoints
        self._store = store

    async def run(self) -> Head:
        """Apply committed updates the database does not know, release dead claims, load the head. Raises ConfigurationError as ``stand_on``."""
        await self._compute.run(self._checkpoints.remove_leftovers)
        await self._compute.run(lambda: policy_store.remove_leftovers(self._store))
        for checkpoint in await self._compute.run(self._checkpoints.all):
            await self._apply(checkpoint)
        async with self._database.write() as session:
            for claim_id in await trajectories.open_claims(session):
                released = await lifecycle.release(session, claim_id, time.time())
                logger.info("claim %s of a learner that died: %d trajectories back in the queue", claim_id, released)
            row = await learner_row.get(session)
        return await self.stand_on(row)

    async def stand_on(self, row: LearnerRow) -> Head:
        """Load the state of the head that ``row`` names. Raises ConfigurationError if its checkpoint is missing or of another model."""
        if row.head_update == 0:
            await self._compute.run(self._learner.reset)
        else:
            checkpoint = await self._compute.run(lambda: self._checkpoints.get(row.head_update))
            if checkpoint is None:
                raise ConfigurationError(
                    f"The learner stands on update {row.head_update}, but its checkpoint is not among those in storage.data_dir. "
                    "Restore the folder from a backup, or start again with an empty storage.data_dir."
                )
            await self._compute.run(lambda: self._learner.load(checkpoint.folder))
        return Head(row.lineage_epoch, row.head_version)

    async def _apply(self, checkpoint: Checkpoint) -> None:
        update = CommittedUpdate.from_json(checkpoint.manifest)
        async with self._database.read() as session:
            known = await updates.by_claim(session, update.claim_id)
            row = await learner_row.get(session)
        if known is not None:
            return
        if (row.lineage_epoch, row.head_version) != (update.lineage_epoch, update.parent_version):
            logger.info("update %d was discarded: its lineage was abandoned before it became known", update.update_number)
            await self._compute.run(lambda: self._checkpoints.remove(update.update_number))
            return
        await self._compute.run(lambda: self._learner.load(checkpoint.folder))
        base_digest = self._learner.identity.base_digest
        folder = await self._compute.run(lambda: publisher.write_files(self._store, update, base_digest, self._learner.export_adapter))
        async with self._database.write() as session:
            await publisher.record_committed(session, update, folder=folder, now=time.time())
        logger.info("update %d was committed before a crash: applied, version %d is staged", update.update_number, update.policy_version)
