"""Scores against a real SQLite file: which are refused, which count, which receipt comes back."""

import asyncio
import math
import time

import pytest
from sqlalchemy import event

from online_sao.config import RewardSettings, Settings
from online_sao.errors import (
    CompletionNotFoundError,
    FeedbackNotFoundError,
    IdempotencyConflictError,
    InvalidRequestError,
    InvalidScoreError,
    UnsupportedFeatureError,
)
from online_sao.publishing import lifecycle
from online_sao.service.feedback import FeedbackService, apply_scores
from online_sao.service.submissions import FeedbackSubmission
from online_sao.storage.repositories import feedback, interactions, trajectories, updates
from online_sao.storage.session import Database
from online_sao.storage.tables import InteractionRow, TrajectoryRow, UpdateRow
from online_sao.types import ReceiptStatus, TrajectoryState

SCORES = 200
"""At once. A thousand are sent over HTTP in the integration tests."""


@pytest.fixture
def service(database: Database, settings: Settings) -> FeedbackService:
    return FeedbackService(database, settings)


async def trajectory_of(database: Database, interaction: InteractionRow) -> TrajectoryRow:
    async with database.read() as session:
        row = await trajectories.by_interaction(session, interaction.id)
    assert row is not None
    return row


async def claim_all(database: Database, claim_id: str = "claim-1") -> list[int]:
    async with database.write() as session:
        return await lifecycle.claim(session, limit=100, claim_id=claim_id, expires_at=time.time() + 60, now=time.time())


async def train(database: Database, claim_id: str = "claim-1") -> None:
    ids = await claim_all(database, claim_id)
    async with database.write() as session:
        update = UpdateRow(
            update_number=1,
            lineage_epoch=0,
            claim_id=claim_id,
            policy_version=None,
            parent_version=0,
            accepted=True,
            reason=None,
            metrics={},
            ratio_histogram={},
            started_at=0.0,
            finished_at=1.0,
        )
        await updates.insert(session, update)
        trained = [lifecycle.TrainedTrajectory(id_, reward=1.0, policy_lag=0, masked_fraction=0.25) for id_ in ids]
        await lifecycle.finish_trained(session, trained, claim_id=claim_id, update_number=1, now=time.time())


async def test_a_score_queues_its_trajectory(service, database, chats) -> None:
    interaction = await chats.completed()
    receipt, created = await service.submit(FeedbackSubmission(interaction.completion_id, 0.75, comment="good"))
    assert created
    assert (receipt.status, receipt.reason, receipt.value, receipt.reward) == (ReceiptStatus.QUEUED, None, 0.75, None)
    assert receipt.completion_id == interaction.completion_id
    assert receipt.object == "feedback"
    row = await trajectory_of(database, interaction)
    assert (row.state, row.reward) == (TrajectoryState.READY, 0.5)
    assert await service.get(receipt.id) == receipt


@pytest.mark.parametrize(("value", "stored", "reward"), [(True, 1.0, 1.0), (False, 0.0, -1.0), (0, 0.0, -1.0), (1, 1.0, 1.0), (0.5, 0.5, 0.0)])
async def test_values_that_count(service, database, chats, value, stored, reward) -> None:
    interaction = await chats.completed()
    receipt, _ = await service.submit(FeedbackSubmission(interaction.completion_id, value))
    assert receipt.value == stored
    assert type(receipt.value) is float
    assert (await trajectory_of(database, interaction)).reward == reward


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        ("0.7", "the string '0.7'"),
        ("true", "the string"),
        (1.0000001, "1.0000001"),
        (-0.1, "-0.1"),
        (2, "2"),
        (10**400, "an integer"),
        (10**5000, "an integer"),
        (None, "null"),
        ([0.5], "an array"),
        ({}, "an object"),
    ],
    ids=lambda value: str(value)[:12] if not isinstance(value, int) else f"int{value.bit_length()}",
)
async def test_values_that_are_refused(service, database, chats, value, shown) -> None:
    interaction = await chats.completed()
    with pytest.raises(InvalidScoreError, match="a number from 0 to 1, or true or false") as error:
        await service.submit(FeedbackSubmission(interaction.completion_id, value))
    assert shown in error.value.message
    assert error.value.param == "value"
    assert (await trajectory_of(database, interaction)).state == TrajectoryState.PENDING


async def test_the_range_is_the_configured_one(database, chats, settings) -> None:
    service = FeedbackService(database, settings.model_copy(update={"reward": RewardSettings(score_min=1, score_max=5)}))
    interaction = await chats.completed()
    with pytest.raises(InvalidScoreError, match="from 1 to 5"):
        await service.submit(FeedbackSubmission(interaction.completion_id, 0.5))
    receipt, _ = await service.submit(FeedbackSubmission(interaction.completion_id, True))
    assert receipt.value == 5.0
    receipt, _ = await service.submit(FeedbackSubmission(interaction.completion_id, 4))
    assert (await trajectory_of(database, interaction)).reward == 0.5


@pytest.mark.parametrize("completion_id", ["chatcmpl-nothing", "nul\0", "half \ud800"])
async def test_unknown_completion(service, completion_id) -> None:
    with pytest.raises(CompletionNotFoundError):
        await service.submit(FeedbackSubmission(completion_id, 1.0))


@pytest.mark.parametrize("feedback_id", ["fb-nothing", "nul\0", "half \ud800"])
async def test_unknown_feedback(service, feedback_id) -> None:
    with pytest.raises(FeedbackNotFoundError):
        await service.get(feedback_id)


@pytest.mark.parametrize(
    ("choices", "choice", "says"), [(1, 1, "has 1 \\(choice 0\\)"), (3, 3, "has 3 \\(choices 0 to 2\\)"), (3, -1, "no choice -1")]
)
async def test_wrong_choice_says_how_many_there_are(service, chats, choices, choice, says) -> None:
    rows = await chats.start(choices=choices)
    with pytest.raises(InvalidRequestError, match=says) as error:
        await service.submit(FeedbackSubmission(rows[0].completion_id, 1.0, choice=choice))
    assert (error.value.status, error.value.param) == (400, "choice")


@pytest.mark.parametrize(
    "fields",
    [
        {"metric": ""},
        {"metric": "m" * 65},
        {"metric": "nul\0"},
        {"idempotency_key": ""},
        {"idempotency_key": "k" * 257},
        {"comment": "half \ud800"},
        {"comment": "c" * 10_001},
        {"completion_id": None},
    ],
)
async def test_fields_no_database_could_keep(service, chats, fields) -> None:
    interaction = await chats.completed()
    with pytest.raises(InvalidRequestError) as error:
        await service.submit(FeedbackSubmission(**{"completion_id": interaction.completion_id, "value": 1.0, **fields}))
    assert error.value.param in fields


async def test_episodes_are_not_scored_yet(service) -> None:
    with pytest.raises(UnsupportedFeatureError, match="Episodes cannot be scored yet"):
        await service.submit(FeedbackSubmission(None, 1.0, episode_id="ep-1"))


async def test_each_choice_has_a_score_of_its_own(service, database, chats) -> None:
    first, second = await chats.start(choices=2)
    for row in (first, second):
        await chats.finish(row)
    await service.submit(FeedbackSubmission(first.completion_id, 1.0, choice=1))
    assert (await trajectory_of(database, first)).state == TrajectoryState.PENDING
    assert (await trajectory_of(database, second)).state == TrajectoryState.READY


async def test_an_equal_score_is_the_same_receipt(service, chats) -> None:
    interaction = await chats.completed()
    first, _ = await service.submit(FeedbackSubmission(interaction.completion_id, 1.0, comment="why"))
    again, created = await service.submit(FeedbackSubmission(interaction.completion_id, True))
    assert (again, created) == (first, False)


async def test_an_equal_score_with_a_new_comment_keeps_the_comment(service, database, chats) -> None:
    interaction = await chats.completed()
    first, _ = await service.submit(FeedbackSubmission(interaction.completion_id, 1.0))
    second, created = await service.submit(FeedbackSubmission(interaction.completion_id, 1.0, comment="because"))
    assert created
    assert second.status == ReceiptStatus.QUEUED
    assert (await service.get(first.id)).status == ReceiptStatus.SUPERSEDED
    async with database.read() as session:
        assert [row.comment for row in (await feedback.list_for_interactions(session, [interaction.id]))[interaction.id]] == [None, "because"]


async def test_another_score_replaces_the_first_until_it_is_claimed(service, database, chats) -> None:
    interaction = await chats.completed()
    first, _ = await service.submit(FeedbackSubmission(interaction.completion_id, 0.0))
    ready_at = (await trajectory_of(database, interaction)).ready_at
    second, created = await service.submit(FeedbackSubmission(interaction.completion_id, 1.0))
    assert created
    row = await trajectory_of(database, interaction)
    assert (row.state, row.reward, row.ready_at) == (TrajectoryState.READY, 1.0, ready_at)
    old = await service.get(first.id)
    assert (old.status, old.reason, old.updated) == (ReceiptStatus.SUPERSEDED, f"replaced by {second.id}", second.created)

    assert len(await claim_all(database)) == 1
    third, created = await service.submit(FeedbackSubmission(interaction.completion_id, 0.2))
    assert created
    assert (third.status, third.reason, third.reward) == (ReceiptStatus.NOT_TRAINABLE, "already_used", None)
    assert (await trajectory_of(database, interaction)).reward == 1.0
    assert (await service.get(second.id)).status == ReceiptStatus.QUEUED


async def test_scores_after_training(service, database, chats) -> None:
    interaction = await chats.completed()
    first, _ = await service.submit(FeedbackSubmission(interaction.completion_id, 1.0))
    await train(database)
    same, created = await service.submit(FeedbackSubmission(interaction.completion_id, 1.0))
    assert not created
    assert (same.id, same.status, same.update, same.reward, same.masked_fraction) == (first.id, ReceiptStatus.TRAINED, 1, 1.0, 0.25)
    late, created = await service.submit(FeedbackSubmission(interaction.completion_id, 0.0))
    assert created
    assert late.reason == "already_used"
    again, created = await service.submit(FeedbackSubmission(interaction.completion_id, 0.0))
    assert (again, created) == (late, False)


async def test_a_claim_that_lapses_can_be_rescored(service, database, chats) -> None:
    interaction = await chats.completed()
    await service.submit(FeedbackSubmission(interaction.completion_id, 0.0))
    await claim_all(database)
    async with database.write() as session:
        assert await lifecycle.release(session, "claim-1", time.time()) == 1
    receipt, _ = await service.submit(FeedbackSubmission(interaction.completion_id, 1.0))
    assert receipt.status == ReceiptStatus.QUEUED
    assert (await trajectory_of(database, interaction)).reward == 1.0


async def test_metrics_are_separate_and_unweighted_ones_change_nothing(database, chats, settings) -> None:
    reward = RewardSettings(metric_weights={"score": 1.0, "tone": 0.5})
    service = FeedbackService(database, settings.model_copy(update={"reward": reward}))
    interaction = await chats.completed()
    length, _ = await service.submit(FeedbackSubmission(interaction.completion_id, 0.3, metric="length"))
    assert (length.status, length.reason) == (ReceiptStatus.NOT_TRAINABLE, "metric_not_weighted")
    assert (await trajectory_of(database, interaction)).state == TrajectoryState.PENDING
    await service.submit(FeedbackSubmission(interaction.completion_id, 1.0))
    await service.submit(FeedbackSubmission(interaction.completion_id, 0.0, metric="tone"))
    assert (await trajectory_of(database, interaction)).reward == 0.5
    again = await service.get(length.id)
    assert (again.status, again.reward) == (ReceiptStatus.NOT_TRAINABLE, None), "what other metrics did is not this score's doing"


async def test_a_score_given_under_a_wider_range_counts_as_the_nearest_end(database, chats, settings) -> None:
    wide = RewardSettings(score_max=10, metric_weights={"score": 1.0, "tone": 1.0})
    interaction = await chats.completed()
    await FeedbackService(database, settings.model_copy(update={"reward": wide})).submit(
        FeedbackSubmission(interaction.completion_id, 9, metric="tone")
    )
    narrow = RewardSettings(metric_weights=wide.metric_weights)
    await FeedbackService(database, settings.model_copy(update={"reward": narrow})).submit(FeedbackSubmission(interaction.completion_id, 0.5))
    assert (await trajectory_of(database, interaction)).reward == 1.0


async def test_a_score_while_generating_counts_once_the_completion_is_there(service, database, chats, settings) -> None:
    (row,) = await chats.start()
    receipt, created = await service.submit(FeedbackSubmission(row.completion_id, 1.0))
    assert created
    assert receipt.status == ReceiptStatus.RECEIVED
    replaced, _ = await service.submit(FeedbackSubmission(row.completion_id, 0.0))
    assert (await service.get(receipt.id)).status == ReceiptStatus.SUPERSEDED
    trajectory = await chats.finish(row)
    async with database.write() as session:
        await apply_scores(session, trajectory, settings.reward, time.time())
    assert ((await trajectory_of(database, row)).state, (await trajectory_of(database, row)).reward) == (TrajectoryState.READY, -1.0)
    assert (await service.get(replaced.id)).status == ReceiptStatus.QUEUED


@pytest.mark.parametrize("finished", [False, True])
async def test_store_false_keeps_no_comment_and_says_why_it_cannot_train(service, database, chats, finished) -> None:
    (row,) = await chats.start(stored=False)
    if finished:
        await chats.finish(row)
    receipt, created = await service.submit(FeedbackSubmission(row.completion_id, 1.0, comment="private"))
    assert created
    assert (receipt.status, receipt.reason) == (ReceiptStatus.NOT_TRAINABLE, "store_false")
    async with database.read() as session:
        assert [score.comment for score in (await feedback.list_for_interactions(session, [row.id]))[row.id]] == [None]


async def test_not_trainable_completions_say_why(service, chats) -> None:
    interaction = await chats.completed(reason="greedy_sampling")
    receipt, created = await service.submit(FeedbackSubmission(interaction.completion_id, 1.0))
    assert created
    assert (receipt.status, receipt.reason) == (ReceiptStatus.NOT_TRAINABLE, "greedy_sampling")


async def test_expired_completions_say_why(service, database, chats) -> None:
    interaction = await chats.completed(deadline_seconds=-1)
    async with database.write() as session:
        assert await lifecycle.expire_overdue(session, time.time(), None) == 1
    receipt, created = await service.submit(FeedbackSubmission(interaction.completion_id, 1.0))
    assert created
    assert (receipt.status, receipt.reason) == (ReceiptStatus.EXPIRED, "no score before the deadline")


async def test_an_idempotency_key_replays_its_receipt(service, chats) -> None:
    interaction = await chats.completed()
    submission = FeedbackSubmission(interaction.completion_id, 0.7, idempotency_key="k")
    first, created = await service.submit(submission)
    assert created
    assert await service.submit(submission) == (first, False)
    with pytest.raises(IdempotencyConflictError) as error:
        await service.submit(FeedbackSubmission(interaction.completion_id, 0.8, idempotency_key="k"))
    assert (error.value.status, error.value.headers) == (409, {"x-should-retry": "false"})


async def test_a_late_retry_does_not_bring_an_old_score_back(service, database, chats) -> None:
    interaction = await chats.completed()
    first, _ = await service.submit(FeedbackSubmission(interaction.completion_id, 1.0, idempotency_key="k1"))
    repeat = FeedbackSubmission(interaction.completion_id, 1.0, idempotency_key="k2")
    assert await service.submit(repeat) == (first, False)
    await service.submit(FeedbackSubmission(interaction.completion_id, 0.0, idempotency_key="k3"))
    retried, created = await service.submit(repeat)
    assert not created
    assert (retried.id, retried.status) == (first.id, ReceiptStatus.SUPERSEDED)
    assert (await trajectory_of(database, interaction)).reward == -1.0
    with pytest.raises(IdempotencyConflictError):
        await service.submit(FeedbackSubmission(interaction.completion_id, 0.5, idempotency_key="k2"))
    async with database.read() as session:
        assert [row.value for row in (await feedback.list_for_interactions(session, [interaction.id]))[interaction.id]] == [1.0, 0.0]


async def test_concurrent_submissions_of_one_key_create_one_score(service, database, chats, settings) -> None:
    interaction = await chats.completed()
    other = Database(database.url)
    second_service = FeedbackService(other, settings)
    submission = FeedbackSubmission(interaction.completion_id, 0.7, idempotency_key="k")
    answers = await asyncio.gather(*(s.submit(submission) for s in [service, second_service] * 20))
    assert len({receipt.id for receipt, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    await other.dispose()


async def test_scores_sent_at_once_are_each_answered_as_if_sent_one_by_one(service, chats) -> None:
    """In the order they came, whichever of them share a transaction."""
    a, b, c = [await chats.completed() for _ in range(3)]
    (hidden,) = await chats.start(stored=False)
    sent = [
        FeedbackSubmission(c.completion_id, 0.5),
        FeedbackSubmission(a.completion_id, 0.25),
        FeedbackSubmission("chatcmpl-nothing", 1.0),
        FeedbackSubmission(b.completion_id, 0.5, choice=7),
        FeedbackSubmission(b.completion_id, 0.5, idempotency_key="k"),
        FeedbackSubmission(a.completion_id, 0.25),
        FeedbackSubmission(c.completion_id, 0.5, idempotency_key="k"),
        FeedbackSubmission(a.completion_id, 0.75),
        FeedbackSubmission(b.completion_id, 0.5, idempotency_key="k"),
        FeedbackSubmission(hidden.completion_id, 1.0),
        FeedbackSubmission(a.completion_id, 0.1, metric="length"),
    ]
    first, score, unknown, choice, keyed, equal, conflict, other, replayed, unstored, unweighted = await asyncio.gather(
        *(service.submit(submission) for submission in sent), return_exceptions=True
    )
    assert [type(error) for error in (unknown, choice, conflict)] == [CompletionNotFoundError, InvalidRequestError, IdempotencyConflictError]
    assert score[1]
    for receipt, created in (first, keyed, other, unstored, unweighted):
        assert created
        assert await service.get(receipt.id) == receipt
    assert equal == (score[0], False)
    assert replayed == (keyed[0], False)
    assert (await service.get(score[0].id)).reason == f"replaced by {other[0].id}"
    assert [unstored[0].reason, unweighted[0].reason] == ["store_false", "metric_not_weighted"]


async def test_many_scores_take_few_statements(service, database, chats) -> None:
    rows = await chats.bulk(41)
    statements: list[str] = []
    event.listen(
        database._engine.sync_engine, "before_cursor_execute", lambda _connection, _cursor, statement, *_: statements.append(statement.split()[0])
    )
    await asyncio.gather(*(service.submit(FeedbackSubmission(row.completion_id, index / 40)) for index, row in enumerate(rows)))
    rows_written = {"INSERT": 1, "UPDATE": 2}
    assert {word: statements.count(word) for word in rows_written} == rows_written
    assert len(statements) <= 7


@pytest.mark.only_on("postgresql")
async def test_what_another_transaction_holds_keeps_no_other_score_waiting(service, database, chats) -> None:
    held, free, also_free, later = [await chats.completed() for _ in range(4)]
    async with database.write() as session:
        await interactions.get(session, held.completion_id, 0, lock=True)
        tasks = [asyncio.create_task(service.submit(FeedbackSubmission(row.completion_id, 1.0))) for row in (free, held, also_free)]
        await asyncio.gather(tasks[0], tasks[2])
        await service.submit(FeedbackSubmission(later.completion_id, 1.0))
        again = asyncio.create_task(service.submit(FeedbackSubmission(held.completion_id, 0.5)))
        await asyncio.sleep(0.05)
        assert not tasks[1].done()
        assert not again.done()
    (first, created), (second, created_too) = await asyncio.gather(tasks[1], again)
    assert (created, created_too) == (True, True)
    assert (await service.get(first.id)).reason == f"replaced by {second.id}", "in the order they came"


async def test_parallel_scores_lose_none(service, database, chats) -> None:
    rows = await chats.bulk(SCORES)
    latencies: list[float] = []

    async def score(row: InteractionRow, value: float) -> str:
        started = time.perf_counter()
        receipt, created = await service.submit(FeedbackSubmission(row.completion_id, value, choice=row.choice))
        latencies.append(time.perf_counter() - started)
        assert created
        return receipt.id

    started = time.perf_counter()
    ids = await asyncio.gather(*(score(row, index / SCORES) for index, row in enumerate(rows)))
    seconds = time.perf_counter() - started
    assert len(set(ids)) == SCORES
    fresh = Database(database.url)
    async with fresh.read() as session:
        assert (await trajectories.queue(session)).ready == SCORES
        kept = [(await feedback.current(session, row.id))["score"].value for row in rows]
        rewards = [(await trajectories.by_interaction(session, row.id)).reward for row in rows]
    await fresh.dispose()
    assert kept == [index / SCORES for index in range(SCORES)]
    assert rewards == pytest.approx([2 * index / SCORES - 1 for index in range(SCORES)])
    latencies.sort()
    print(f"{SCORES} parallel scores: {SCORES // seconds:.0f}/s, p50 {latencies[SCORES // 2]:.3f} s, p99 {latencies[SCORES * 99 // 100]:.3f} s")
