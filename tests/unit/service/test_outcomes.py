"""Interactions found by what became of them: over all states, the same as what their receipts say one by one."""

from __future__ import annotations

import time
from collections import Counter
from itertools import product

import pytest

from online_sao.service.interactions import InteractionService
from online_sao.service.reasons import ReasonCode, advice_for, kind_of, of_code
from online_sao.service.status import StatusService
from online_sao.storage.repositories import learner, policies
from online_sao.storage.repositories.feedback import DUPLICATE
from online_sao.storage.tables import FeedbackRow, PolicyVersionRow, TrajectoryRow, UpdateRow
from online_sao.types import InteractionStatus, ReceiptStatus, TrajectoryState, VersionState

V = VersionState
VERSIONS = (
    # version, parent, epoch, state, activated: 2 and 3 were left in the rollback to 1 that began epoch 1
    (1, 0, 0, V.RETIRED, 10.0),
    (2, 1, 0, V.RETIRED, 20.0),
    (3, 2, 0, V.STAGED, None),
    (4, 1, 1, V.ACTIVE, 30.0),
    (5, 4, 1, V.STAGED, None),
    (6, 5, 1, V.FAILED, None),
)
SCORES = ({}, {"refused_reason": "already_used"}, {"refused_reason": DUPLICATE, "superseded_by": "fb-other"}, {"superseded_by": "fb-other"})


@pytest.fixture
async def everything(database, chats) -> int:
    """Every state an answer can be in, with every kind of score and with several. Returns how many answers."""
    now = time.time()
    async with database.write() as session:
        (await policies.active(session)).state = V.RETIRED  # the base: version 4 serves
        for version, parent, epoch, state, activated in VERSIONS:
            session.add(
                PolicyVersionRow(
                    version=version,
                    parent=parent,
                    lineage_epoch=epoch,
                    update_number=version,
                    path="p",
                    served_digest=[1.0],
                    state=state,
                    created_at=1.0,
                    activated_at=activated,
                )
            )
            await session.flush()
            session.add(
                UpdateRow(
                    update_number=version,
                    lineage_epoch=epoch,
                    claim_id=f"c{version}",
                    policy_version=version,
                    parent_version=parent,
                    accepted=True,
                    metrics={},
                    ratio_histogram={},
                    started_at=1.0,
                    finished_at=2.0,
                )
            )
        await learner.begin_epoch(session, 1, head_version=5, head_update=5)
    ends = [
        *((state, None) for state in TrajectoryState if state is not TrajectoryState.TRAINED),
        *((TrajectoryState.TRAINED, version) for version, *_ in VERSIONS),
        *((None, (status, stored, erased)) for status, stored, erased in product(InteractionStatus, (True, False), (None, 5.0))),
    ]
    number = 0
    for (state, more), scores in product(ends, (*((score,) for score in SCORES), SCORES)):
        number += 1
        row = chats._row(f"chatcmpl-{number}", created_at=now)
        row.status = InteractionStatus.COMPLETED
        if state is None:
            row.status, row.stored, row.erased_at = more
        async with database.write() as session:
            session.add(row)
            await session.flush()
            if state is not None:
                session.add(
                    TrajectoryRow(
                        interaction_id=row.id,
                        state=state,
                        reason="why",
                        update_number=more,
                        oldest_policy_version=0,
                        created_at=now,
                        deadline_at=now,
                        updated_at=now,
                    )
                )
            for index, score in enumerate(scores):
                values = {"id": f"fb-{number}-{index}", "metric": f"m{index}", "value": 1.0, "body_digest": "d", "created_at": now}
                session.add(FeedbackRow(interaction_id=row.id, **(values | score)))
    return number


async def test_the_filter_finds_what_the_receipts_say(database, everything) -> None:
    service = InteractionService(database)
    choices = (await service.page(limit=1000)).choices
    assert len(choices) == everything
    for status in ReceiptStatus:
        expected = [choice.interaction.id for choice in choices if status in [receipt.status for receipt in choice.receipts]]
        found = [choice.interaction.id for choice in (await service.page(limit=1000, receipt=status)).choices]
        assert expected, status
        assert found == expected, status
    for state in TrajectoryState:
        found = [choice.trajectory.state for choice in (await service.page(limit=1000, trajectory=state)).choices if choice.trajectory]
        assert set(found) == {state}
    both = await service.page(limit=1000, receipt=ReceiptStatus.SUPERSEDED, trajectory=TrajectoryState.READY)
    assert len(both.choices) == 2


async def test_receipts_are_counted_as_they_would_be_read_one_by_one(database, everything) -> None:
    choices = (await InteractionService(database).page(limit=1000)).choices
    read = Counter(receipt.status for choice in choices for receipt in choice.receipts)
    service = StatusService(database)
    _, totals, _ = await service.measured(60.0)
    assert totals.receipts == read
    assert set(read) == set(ReceiptStatus)
    assert totals.accepted_updates == len(VERSIONS)
    later = StatusService(database, clock=lambda: time.time() + 25 * 3600)
    _, totals, _ = await later.measured(60.0)
    assert sum(totals.receipts.values()) == 0


async def test_scores_without_effect_are_those_whose_receipts_say_so(database, everything) -> None:
    service = InteractionService(database)
    choices = (await service.page(limit=1000)).choices
    no_effect = (ReceiptStatus.NOT_TRAINABLE, ReceiptStatus.EXPIRED, ReceiptStatus.REJECTED)
    receipts = [receipt for choice in choices for receipt in choice.receipts if receipt.status in no_effect]
    assert sum(one.count for one in await service.scores_without_effect(since=0.0)) == len(receipts)
    assert await service.scores_without_effect(since=time.time() + 60) == ()
    expected = [choice.interaction.id for choice in choices if any(receipt.status in no_effect for receipt in choice.receipts)]
    assert [choice.interaction.id for choice in (await service.page(limit=1000, without_effect=True)).choices] == expected


async def test_what_a_version_learned_from_is_found(database, everything) -> None:
    service = InteractionService(database)
    choices = (await service.page(limit=1000)).choices
    for version, *_ in VERSIONS:
        expected = [
            choice.interaction.id
            for choice in choices
            if choice.trajectory is not None and choice.trajectory.state == TrajectoryState.TRAINED and choice.trajectory.update_number == version
        ]
        assert expected
        assert [choice.interaction.id for choice in (await service.page(limit=1000, learned_into=version)).choices] == expected


async def test_unused_answers_and_scores_are_counted_by_reason_and_found_by_it(database, chats) -> None:
    for reason in ("store_false", "store_false", "greedy_sampling", "policy_lag 35 > 32", "policy version 3 was rolled back to version 1: a bad day"):
        await chats.completed(reason=reason)
    await chats.completed(reason="something nobody foresaw")
    ready = await chats.completed()
    async with database.write() as session:
        for number, reason in enumerate(("metric_not_weighted", "metric_not_weighted", DUPLICATE)):
            session.add(
                FeedbackRow(
                    id=f"fb-{number}",
                    interaction_id=ready.id,
                    metric="tone",
                    value=1.0,
                    body_digest="d",
                    refused_reason=reason,
                    superseded_by="fb-0" if reason == DUPLICATE else None,
                    created_at=1.0,
                )
            )
    service = InteractionService(database)
    counted = {(unused.state, unused.kind and unused.kind.code): unused.count for unused in await service.unused()}
    never = TrajectoryState.NOT_TRAINABLE
    assert counted == {
        (never, ReasonCode.STORE_FALSE): 2,
        (never, ReasonCode.GREEDY_SAMPLING): 1,
        (never, ReasonCode.POLICY_LAG): 1,
        (never, ReasonCode.ROLLED_BACK): 1,
        (never, None): 1,
    }
    (refused,) = await service.scores_without_effect(since=0.0)
    assert (refused.state, refused.kind, refused.count) == (None, of_code(ReasonCode.METRIC_NOT_WEIGHTED), 2)
    for (state, code), count in counted.items():
        if code is not None:
            assert len((await service.page(limit=100, trajectory=state, reason=code)).choices) == count
    (scored,) = (await service.page(limit=100, receipt=ReceiptStatus.NOT_TRAINABLE, reason=ReasonCode.METRIC_NOT_WEIGHTED)).choices
    assert scored.interaction.id == ready.id
    assert "reward.metric_weights" in (scored.receipts[0].advice or "")


@pytest.mark.parametrize("code", ReasonCode)
def test_every_reason_has_words_and_advice_and_is_known_again(code) -> None:
    kind = of_code(code)
    assert kind_of(kind.beginning) is kind
    assert kind.words
    assert kind.advice.endswith(".")


def test_words_of_their_own_have_no_advice() -> None:
    assert advice_for(None) is advice_for("policy/entropy is 0.01, below 0.05") is None
