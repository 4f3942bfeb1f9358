"""Receipts over every combination of states; the expected statuses are written out from the design, not computed."""

from dataclasses import fields
from itertools import product

import pytest

from online_sao.publishing import lifecycle
from online_sao.service.feedback import FeedbackService
from online_sao.service.receipts import Receipt, derive
from online_sao.service.submissions import FeedbackSubmission
from online_sao.storage.repositories import learner, policies, updates
from online_sao.storage.repositories.receipts import ReceiptRows
from online_sao.storage.tables import FeedbackRow, InteractionRow, LearnerRow, PolicyVersionRow, TrajectoryRow, UpdateRow
from online_sao.types import InteractionStatus, ReceiptStatus, TrajectoryState, VersionState

R, T, V, I = ReceiptStatus, TrajectoryState, VersionState, InteractionStatus  # noqa: E741


def score(**changes) -> FeedbackRow:
    values = {"id": "fb-1", "metric": "score", "value": 0.5, "superseded_by": None, "refused_reason": None, "created_at": 100.0}
    return FeedbackRow(**(values | changes))


def interaction(status: InteractionStatus = I.COMPLETED, stored: bool = True) -> InteractionRow:
    return InteractionRow(id=1, completion_id="chatcmpl-1", choice=2, status=status, stored=stored)


def trajectory(state: TrajectoryState, reason: str | None = "the reason") -> TrajectoryRow:
    return TrajectoryRow(id=1, state=state, reason=reason, reward=0.25, update_number=7, masked_fraction=0.125, updated_at=200.0)


def version(state: VersionState = V.ACTIVE, activated_at: float | None = 300.0, reason: str | None = None) -> PolicyVersionRow:
    return PolicyVersionRow(version=6, state=state, activated_at=activated_at, reason=reason)


def update() -> UpdateRow:
    return UpdateRow(update_number=7, policy_version=6)


def test_the_fields_come_in_the_documented_order() -> None:
    names = [field.name for field in fields(Receipt)]
    assert names[:7] == ["id", "object", "completion_id", "choice", "metric", "value", "status"]
    assert names[7:] == ["reason", "reward", "update", "policy_version", "masked_fraction", "created", "updated", "advice", "comment"]


@pytest.mark.parametrize(
    ("state", "status", "reason", "used"),
    [
        (T.PENDING, R.RECEIVED, None, False),
        (T.READY, R.QUEUED, None, False),
        (T.CLAIMED, R.QUEUED, None, False),
        (T.REJECTED, R.REJECTED, "the reason", True),
        (T.EXPIRED, R.EXPIRED, "the reason", False),
        (T.NOT_TRAINABLE, R.NOT_TRAINABLE, "the reason", False),
        (T.TRAINED, R.LIVE, None, True),
    ],
)
def test_every_trajectory_state(state, status, reason, used) -> None:
    # An update and a version are given to all, to show that states before use do not tell of them.
    receipt = derive(ReceiptRows(score(), interaction(), trajectory(state), update(), version()))
    assert (receipt.status, receipt.reason) == (status, reason)
    assert (receipt.reward, receipt.update, receipt.masked_fraction) == ((0.25, 7, 0.125) if used else (None, None, None))
    assert receipt.policy_version == (6 if used else None)
    assert (receipt.id, receipt.object, receipt.completion_id, receipt.choice) == ("fb-1", "feedback", "chatcmpl-1", 2)
    assert (receipt.created, receipt.updated) == (100.0, 300.0 if state is T.TRAINED else 200.0)


@pytest.mark.parametrize(
    ("state", "activated_at", "abandoned", "status", "reason"),
    [
        (V.STAGED, None, False, R.TRAINED, None),
        (V.VERIFIED, None, False, R.TRAINED, None),
        (V.ACTIVE, 300.0, False, R.LIVE, None),
        (V.RETIRED, 300.0, False, R.LIVE, None),
        (V.FAILED, None, False, R.TRAINED, "policy version failed: bad digest"),
        (V.FAILED, 300.0, False, R.LIVE, None),
        (V.STAGED, None, True, R.ROLLED_BACK, "policy version 6 was rolled back"),
        (V.VERIFIED, None, True, R.ROLLED_BACK, "policy version 6 was rolled back"),
        (V.ACTIVE, 300.0, True, R.ROLLED_BACK, "policy version 6 was rolled back"),
        (V.RETIRED, 300.0, True, R.ROLLED_BACK, "policy version 6 was rolled back"),
        (V.FAILED, None, True, R.ROLLED_BACK, "policy version 6 was rolled back"),
    ],
)
def test_every_version_state_of_a_trained_score(state, activated_at, abandoned, status, reason) -> None:
    rows = ReceiptRows(score(), interaction(), trajectory(T.TRAINED, None), update(), version(state, activated_at, "bad digest"), abandoned=abandoned)
    receipt = derive(rows)
    assert (receipt.status, receipt.reason, receipt.update, receipt.policy_version) == (status, reason, 7, 6)


@pytest.mark.parametrize(
    ("status", "stored", "receipt_status", "reason"),
    [
        (I.GENERATING, True, R.RECEIVED, None),
        (I.GENERATING, False, R.NOT_TRAINABLE, "store_false"),
        (I.COMPLETED, True, R.NOT_TRAINABLE, "completed"),
        (I.ABANDONED, True, R.NOT_TRAINABLE, "abandoned"),
        (I.INTERRUPTED, True, R.NOT_TRAINABLE, "interrupted"),
        (I.FAILED, True, R.NOT_TRAINABLE, "failed"),
        *((status, False, R.NOT_TRAINABLE, "store_false") for status in I),
    ],
)
def test_interactions_without_a_trajectory(status, stored, receipt_status, reason) -> None:
    receipt = derive(ReceiptRows(score(), interaction(status, stored)))
    assert (receipt.status, receipt.reason, receipt.updated) == (receipt_status, reason, 100.0)


@pytest.mark.parametrize(("state", "status"), list(product([None, *T], I)))
def test_a_superseded_score_says_so_whatever_became_of_the_trajectory(state, status) -> None:
    newer = score(id="fb-2", created_at=150.0)
    rows = ReceiptRows(score(superseded_by="fb-2"), interaction(status), trajectory(state) if state else None, update(), version(), replacement=newer)
    receipt = derive(rows)
    assert (receipt.status, receipt.reason) == (R.SUPERSEDED, "replaced by fb-2")
    assert (receipt.reward, receipt.update, receipt.policy_version, receipt.updated) == (None, None, None, 150.0)


@pytest.mark.parametrize(("state", "status"), list(product([None, *T], I)))
def test_a_refused_score_says_why_whatever_became_of_the_trajectory(state, status) -> None:
    rows = ReceiptRows(score(refused_reason="already_used"), interaction(status), trajectory(state) if state else None, update(), version())
    receipt = derive(rows)
    assert (receipt.status, receipt.reason) == (R.NOT_TRAINABLE, "already_used")
    assert (receipt.reward, receipt.update, receipt.policy_version, receipt.updated) == (None, None, None, 100.0)


async def test_a_receipt_follows_its_score_from_queue_to_live_to_rolled_back(database, chats, settings) -> None:
    service = FeedbackService(database, settings)
    row = await chats.completed()
    receipt, _ = await service.submit(FeedbackSubmission(row.completion_id, 1.0))
    assert receipt.status == R.QUEUED
    async with database.write() as session:
        ids = await lifecycle.claim(session, limit=1, claim_id="c", expires_at=9e9, now=receipt.created + 1)
        await updates.insert(
            session,
            UpdateRow(
                update_number=1,
                lineage_epoch=0,
                claim_id="c",
                policy_version=1,
                parent_version=0,
                accepted=True,
                metrics={},
                ratio_histogram={},
                started_at=0.0,
                finished_at=1.0,
            ),
        )
        await policies.insert(
            session, PolicyVersionRow(version=1, parent=0, lineage_epoch=0, update_number=1, path="v000001", served_digest=[1.0], created_at=1.0)
        )
        trained = [lifecycle.TrainedTrajectory(id_, reward=1.0, policy_lag=0, masked_fraction=0.5) for id_ in ids]
        await lifecycle.finish_trained(session, trained, claim_id="c", update_number=1, now=receipt.created + 2)
        await learner.set_head(session, head_version=1, head_update=1)
    trained_receipt = await service.get(receipt.id)
    assert (trained_receipt.status, trained_receipt.policy_version, trained_receipt.masked_fraction) == (R.TRAINED, 1, 0.5)
    async with database.write() as session:
        await lifecycle.move_version(session, 1, V.VERIFIED, now=0.0)
        await lifecycle.activate(session, 1, receipt.created + 3)
    live = await service.get(receipt.id)
    assert (live.status, live.policy_version, live.updated) == (R.LIVE, 1, receipt.created + 3)
    async with database.write() as session:
        state = await session.get_one(LearnerRow, 1)
        state.lineage_epoch = 1
    assert (await service.get(receipt.id)).status == R.LIVE, "a version the learner still stands on is not rolled back"
    async with database.write() as session:
        await learner.set_head(session, head_version=0, head_update=0)
    assert (await service.get(receipt.id)).status == R.ROLLED_BACK
