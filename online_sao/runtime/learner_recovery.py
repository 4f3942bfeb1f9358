"""Where the learner stands: brought up to date at start, and loaded whenever the database says it stands elsewhere.

Owns the rule of docs/design.md §7.3 that checkpoints newer than the database are applied before anything is claimed, and that those of a discarded
update are removed; and what a learner stands on whose checkpoint has been pruned: how far one can roll back is for the policy store to say, not for
the few checkpoints that are kept. Knows nothing of batches.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from online_sao.background import Background
from online_sao.errors import ConfigurationError, PolicyStoreError
from online_sao.learner.checkpoints import Checkpoint, Checkpoints
from online_sao.learner.learner import Learner
from online_sao.publishing import lifecycle, policy_store, publisher
from online_sao.publishing.publisher import CommittedUpdate
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
        self.note: str | None = None
        """What an operator should know of where the learner stands: what it had to do without. None: nothing."""

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
        """Load the state of the head that ``row`` names: its checkpoint, or where that is gone the published version with fresh optimisers and
        the newest value model there is. Raises ConfigurationError if neither can be had, or they are of another model."""
        self.note = None
        if row.head_update == 0:
            await self._compute.run(self._learner.reset)
        elif not await self._compute.run(lambda: self._load(self._checkpoints.get(row.head_update))):
            await self._compute.run(lambda: self._stand_on_published(row.head_version, row.head_update))
        pretrained = self._checkpoints.value(row.head_update)
        if pretrained is not None:
            await self._compute.run(lambda: self._learner.load_value(pretrained))
        return Head(row.lineage_epoch, row.head_version)

    def _load(self, checkpoint: Checkpoint | None) -> bool:
        """False: there is none, or it cannot be read."""
        if checkpoint is None:
            return False
        try:
            self._learner.load(checkpoint.folder)
        except ConfigurationError:
            raise
        except Exception:
            logger.exception("the checkpoint of update %d cannot be read", checkpoint.update_number)
            return False
        return True

    def _stand_on_published(self, version: int, update: int) -> None:
        folder = policy_store.version_dir(self._store, version)
        # Loaded for its value model only; the last one that can be read stays.
        value_from = next((kept for kept in reversed(self._checkpoints.all()) if kept.update_number != update and self._load(kept)), None)
        try:
            policy_store.verify(folder, base_digest=self._learner.identity.base_digest)
            self._learner.stand_on_published(folder, value_from.folder if value_from is not None else None)
        except PolicyStoreError as error:
            raise ConfigurationError(
                f"The learner stands on version {version}, but the checkpoint of update {update} is gone, and the published version cannot take its "
                f"place: {error.message}. Roll back to another version, or restore storage.data_dir from a backup."
            ) from error
        value = f"the value model of update {value_from.update_number}" if value_from is not None else "an untrained value model"
        self.note = f"standing on version {version} as published, with fresh optimisers and {value}: the checkpoint of update {update} is gone"
        logger.warning("%s", self.note)

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
