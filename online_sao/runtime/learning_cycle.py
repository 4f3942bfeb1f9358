"""The learning cycle: scored trajectories in, policy versions out. One turn after the other, in one process per database.

Consumes: READY trajectories (lifecycle.claim), probe rows, the learner's own row (head, lineage epoch, paused).
Produces: update rows, checkpoints, STAGED policy versions and their files, TRAINED and REJECTED trajectories.

A turn, and what it waits for:

    1. not paused          waits for ``resume`` (an operator; after a failed self-check too)
    2. standing on head    loads the head where a rollback has moved it: its checkpoint, or the published version where that was pruned
    3. self-check          unchecked probes against the learner's own logprobs; a difference pauses the learner
    4. claim               waits for batch_size scored trajectories, or for a smaller batch to come of age
    5. update              targets, value updates, advantages, policy update, in a thread; a stop discards it and releases the claim
    6. gate                refused: state put back, trajectories REJECTED, next turn
    7. claim renewed       every trajectory still held and the head unmoved, or the update is discarded
    8. checkpoint          one rename: the commit point
    9. publish             files into the policy store, then one transaction; the serving side's activator is unblocked by the new row

It is never blocked by serving, and blocks it never. It may be killed at any instant: before 8 nothing has happened, after 8 the update is
applied at the next start (learner_recovery.py). No transaction is open during 5, 8 or the file work of 9.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

from online_sao.background import Background
from online_sao.config import Settings
from online_sao.errors import LeaseLostError, RanksLostError
from online_sao.experience.batching import pack
from online_sao.learner.checkpoints import Checkpoints
from online_sao.learner.learner import Learner, UpdateCancelledError
from online_sao.learner.report import UpdateReport
from online_sao.learner.state import LearnerState
from online_sao.publishing import gates, lifecycle, publisher
from online_sao.publishing.lifecycle import TrainedTrajectory
from online_sao.publishing.publisher import CommittedUpdate, RefusedUpdate
from online_sao.runtime.batches import ClaimedBatch, ClaimRules, Head, claim_batch
from online_sao.runtime.learner_recovery import LearnerRecovery
from online_sao.runtime.learner_status import LearnerStatus
from online_sao.runtime.self_check import ALARM, SelfCheck
from online_sao.runtime.value_pretraining import ValuePretraining
from online_sao.storage.repositories import learner as learner_row
from online_sao.storage.repositories import policies, trajectories, updates
from online_sao.storage.session import Database

logger = logging.getLogger(__name__)

STOP_SECONDS = 1.0
"""What an update is given to notice that it has been cancelled, before the process ends around it."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An update that has been computed (or has failed to be) and waits for judgement."""

    batch: ClaimedBatch
    before: LearnerState
    started_at: float
    finished_at: float
    report: UpdateReport


class LearningCycle:
    """``run`` once, while holding the learner lease; returns after ``stopping`` is set. ``compute`` is the only user of ``learner``."""

    def __init__(
        self, settings: Settings, database: Database, learner: Learner, compute: Background, status: LearnerStatus, stopping: asyncio.Event
    ) -> None:
        self._settings = settings
        self._database = database
        self._learner = learner
        self._compute = compute
        self._status = status
        self._stopping = stopping
        self._store: Path = settings.policy_store_dir
        self._checkpoints = Checkpoints(settings.checkpoints_dir)
        self._recovery = LearnerRecovery(database, learner, compute, self._checkpoints, self._store)
        self._self_check = SelfCheck(database, learner, compute, self._store)
        learning = settings.learning
        self._rules = ClaimRules(
            batch_size=learner.recipe.batch_size,
            min_batch_size=learning.min_batch_size,
            max_age_seconds=learning.max_batch_age_seconds,
            max_policy_lag=learner.recipe.max_policy_lag,
            lease_seconds=learning.lease_seconds,
            vocabulary_size=learner.vocabulary_size,
        )
        self._pretraining = ValuePretraining(database, learner, compute, learning, stopping.is_set)
        self._pretraining_tried = False
        self._head = Head(-1, -1)

    async def run(self) -> None:
        self._head = await self._recovery.run()
        while not self._stopping.is_set():
            if not await self._turn():
                await self._rest()

    async def _turn(self) -> bool:
        """False: there was nothing to do."""
        async with self._database.read() as session:
            row = await learner_row.get(session)
        if row.paused:
            self._status.set("alarm" if (row.pause_reason or "").startswith(ALARM) else "paused", row.pause_reason)
            return False
        if (row.lineage_epoch, row.head_version) != (self._head.lineage_epoch, self._head.version):
            self._head = await self._recovery.stand_on(row)
            self._pretraining_tried = False
        if not await self._self_check.passes(self._head.version):
            return True
        if not self._pretraining_tried and await self._pretraining.due():
            await self._pretrain()
            return True
        batch = await claim_batch(self._database, self._rules, self._head)
        if batch is None:
            self._status.set("waiting", self._recovery.note)
            return False
        await self._learn(batch)
        return True

    async def _rest(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), timeout=self._settings.learning.poll_seconds)
        except TimeoutError:
            return

    async def _pretrain(self) -> None:
        """Once for each place the learner stands on: where nothing is kept of it, more of the same would keep nothing either."""
        self._status.set("pretraining", "the value model, on logged scores")
        self._pretraining_tried = True
        try:
            await self._pretraining.run()
        except UpdateCancelledError:
            logger.info("value pretraining was given up: the learner was told to stop")

    async def _learn(self, batch: ClaimedBatch) -> None:
        doing = f"{len(batch.trajectories)} trajectories on version {batch.head.version}"
        self._status.set("updating", doing, batch.head.lineage_epoch)
        before = await self._compute.run(self._learner.snapshot)
        started_at = time.time()
        try:
            report = await self._update(batch)
        except UpdateCancelledError:
            await self._discard(batch, "the learner was told to stop")
            return
        candidate = _Candidate(batch, before, started_at, time.time(), report)
        refusal = gates.check(report, self._settings.gates)
        if refusal is not None:
            await self._refuse(candidate, refusal)
            return
        self._status.set("publishing", doing, batch.head.lineage_epoch)
        try:
            await self._commit(candidate)
        except LeaseLostError as error:
            await self._restore(before)
            await self._discard(batch, error.message)

    async def _update(self, batch: ClaimedBatch) -> UpdateReport:
        """Raises UpdateCancelledError on a stop, RanksLostError where the learner can compute no more. Any other failure is a report with a problem,
        so that the batch is refused, not tried for ever."""
        packed = pack(batch.trajectories, self._settings.learning.microbatch_tokens, self._learner.ranks.at_once)
        work = asyncio.create_task(self._compute.run(lambda: self._learner.update(packed, cancelled=self._stopping.is_set)))
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not work.done():
            await asyncio.wait({work}, timeout=STOP_SECONDS)
        if not work.done():
            work.cancel()
            raise UpdateCancelledError("The update did not notice in time that it was cancelled.")
        try:
            report = work.result()
        except UpdateCancelledError:
            raise
        except RanksLostError as error:
            if self._stopping.is_set():  # the others may have been told to end a moment before this one
                raise UpdateCancelledError(error.message) from error
            raise  # the batch is not to blame: its claim lapses, and the learner that is started next takes it up anew
        except Exception as error:
            logger.exception("the update failed")
            return UpdateReport({}, (0.0,) * len(batch.trajectories), {}, f"the update failed: {type(error).__name__}: {error}")
        lags = batch.policy_lags
        report.metrics.update({"data/policy_lag_mean": math.fsum(lags) / len(lags), "data/policy_lag_max": float(max(lags))})
        return report

    async def _commit(self, candidate: _Candidate) -> None:
        """Steps 7 to 9. Raises LeaseLostError if the update must be discarded."""
        batch, report = candidate.batch, candidate.report
        async with self._database.write() as session:
            row = await learner_row.get(session)
            if (row.lineage_epoch, row.head_version) != (batch.head.lineage_epoch, batch.head.version):
                raise LeaseLostError(f"The learner was moved to version {row.head_version} of lineage {row.lineage_epoch} during the update.")
            expires_at = time.time() + self._settings.learning.lease_seconds
            await trajectories.renew_claim(session, batch.claim_id, expected=len(batch.trajectories), expires_at=expires_at)
            number = await updates.max_update_number(session) + 1
            version = await policies.max_version(session) + 1
        used = zip(batch.trajectories, batch.policy_lags, report.masked_fraction, strict=True)
        update = CommittedUpdate(
            update_number=number,
            claim_id=batch.claim_id,
            lineage_epoch=batch.head.lineage_epoch,
            parent_version=batch.head.version,
            policy_version=version,
            trajectories=tuple(TrainedTrajectory(t.trajectory_id, t.reward, lag, masked) for t, lag, masked in used),
            served_digest=await self._compute.run(self._learner.served_digest),
            metrics=report.metrics,
            ratio_histogram=report.ratio_histogram,
            started_at=candidate.started_at,
            finished_at=candidate.finished_at,
        )
        await self._compute.run(lambda: self._checkpoints.write(number, update.to_json(), self._learner.save))
        base_digest = self._learner.identity.base_digest
        folder = await self._compute.run(lambda: publisher.write_files(self._store, update, base_digest, self._learner.export_adapter))
        try:
            async with self._database.write() as session:
                await publisher.record_committed(session, update, folder=folder, now=time.time())
        except LeaseLostError:
            await self._compute.run(lambda: self._checkpoints.remove(number))
            raise
        self._head, self._recovery.note = Head(batch.head.lineage_epoch, version), None
        await self._compute.run(lambda: self._checkpoints.prune(self._settings.learning.keep_checkpoints))
        logger.info(
            "update %d: %d trajectories, version %d staged (%.1f s)", number, len(batch.trajectories), version, update.finished_at - update.started_at
        )

    async def _refuse(self, candidate: _Candidate, reason: str) -> None:
        """The update goes nowhere: state put back, trajectories REJECTED with the reason."""
        logger.warning("update refused: %s", reason)
        await self._restore(candidate.before)
        batch, report = candidate.batch, candidate.report
        async with self._database.write() as session:
            refused = RefusedUpdate(
                update_number=await updates.max_update_number(session) + 1,
                claim_id=batch.claim_id,
                lineage_epoch=batch.head.lineage_epoch,
                parent_version=batch.head.version,
                reason=reason,
                metrics=report.metrics,
                ratio_histogram=report.ratio_histogram,
                started_at=candidate.started_at,
                finished_at=candidate.finished_at,
            )
            await publisher.record_refused(session, refused, time.time())

    async def _discard(self, batch: ClaimedBatch, reason: str) -> None:
        """As if it had never been claimed."""
        logger.info("update discarded: %s", reason)
        async with self._database.write() as session:
            await lifecycle.release(session, batch.claim_id, time.time())

    async def _restore(self, before: LearnerState) -> None:
        await self._compute.run(lambda: self._learner.restore(before))
