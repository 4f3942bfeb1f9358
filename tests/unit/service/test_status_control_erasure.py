"""The snapshot against rows it must count, the operator's switches, and what is left after an erasure."""

import pytest
from sqlalchemy import event, select

from online_sao.errors import CompletionNotFoundError, InvalidRequestError, LeaseLostError, StorageError
from online_sao.publishing import lifecycle
from online_sao.service.control import ControlService
from online_sao.service.erasure import ErasureService
from online_sao.service.feedback import FeedbackService
from online_sao.service.status import StatusService
from online_sao.service.submissions import FeedbackSubmission
from online_sao.storage.repositories import instances, interactions, learner, leases, policies, trajectories, updates
from online_sao.storage.session import sqlite_path
from online_sao.storage.tables import FeedbackRow, InteractionRow, PolicyVersionRow, ServingInstanceRow, SwapRow, UpdateRow
from online_sao.types import ReceiptStatus, TrajectoryState, VersionState


@pytest.fixture
def service(database, settings) -> FeedbackService:
    return FeedbackService(database, settings)


async def add_version(database, number: int) -> None:
    async with database.write() as session:
        row = PolicyVersionRow(
            version=number, parent=number - 1, lineage_epoch=0, update_number=number, path="p", served_digest=[1.0], created_at=float(number)
        )
        await policies.insert(session, row)
        await lifecycle.move_version(session, number, VersionState.VERIFIED, now=1.0)
        await lifecycle.activate(session, number, now=float(number))
        await policies.insert_swap(
            session,
            SwapRow(policy_version=number, pause_seconds=0.2, total_seconds=0.3, requests_in_flight=2, recomputed_tokens=0, created_at=float(number)),
        )


async def test_a_fresh_database_has_a_snapshot(database) -> None:
    snapshot = await StatusService(database, clock=lambda: 50.0).snapshot()
    assert (snapshot.as_of, snapshot.active_version, snapshot.last_update) == (50.0, 0, None)
    assert snapshot.pipeline == dict.fromkeys(TrajectoryState, 0)
    assert (snapshot.learner.phase, snapshot.learner.heartbeat_age, snapshot.learner.head_version) == ("stopped", None, 0)
    assert [(version.version, version.state, version.mean_score, version.scores) for version in snapshot.versions] == [
        (0, VersionState.ACTIVE, None, 0)
    ]
    assert (snapshot.scores, snapshot.swaps, snapshot.total_scores, snapshot.coverage.fraction) == ((), (), 0, None)


async def test_the_snapshot_counts_what_there_is(database, chats, service) -> None:
    await add_version(database, 1)
    old = [await chats.completed(policy_version=0) for _ in range(3)]
    new = [await chats.completed(policy_version=1) for _ in range(2)]
    await chats.start()
    first, _ = await service.submit(FeedbackSubmission(old[0].completion_id, 0.0))
    replaced, _ = await service.submit(FeedbackSubmission(old[0].completion_id, 0.5))
    await service.submit(FeedbackSubmission(old[0].completion_id, 1.0, metric="tone"))
    await service.submit(FeedbackSubmission(old[1].completion_id, 1.0))
    last, _ = await service.submit(FeedbackSubmission(new[0].completion_id, 1.0))
    async with database.write() as session:
        await lifecycle.claim(session, limit=1, claim_id="c", expires_at=9e9, now=9e8)
        row = UpdateRow(
            update_number=1,
            lineage_epoch=0,
            claim_id="c",
            policy_version=1,
            parent_version=0,
            accepted=True,
            metrics={"policy/loss": 0.5, "value/explained_variance": float("nan")},
            ratio_histogram={"edges": [float("-inf"), 0.0]},
            started_at=10.0,
            finished_at=20.0,
        )
        await updates.insert(session, row)
        await learner.heartbeat(session, phase="waiting", detail="3 of 8", pid=12, now=first.created)
    service_ = StatusService(database, clock=lambda: first.created + 5)
    snapshot = await service_.snapshot(scores=2)
    counted = {state: count for state, count in snapshot.pipeline.items() if count}
    assert counted == {TrajectoryState.PENDING: 2, TrajectoryState.READY: 2, TrajectoryState.CLAIMED: 1}
    assert snapshot.generating == 1
    assert snapshot.active_version == 1
    assert (snapshot.learner.phase, snapshot.learner.detail, snapshot.learner.heartbeat_age) == ("waiting", "3 of 8", 5.0)
    assert snapshot.last_update.metrics == {"policy/loss": 0.5, "value/explained_variance": None}
    assert snapshot.last_update.ratio_histogram == {"edges": [None, 0.0]}
    assert [(version.version, version.mean_score, version.scores) for version in snapshot.versions] == [(1, 1.0, 1), (0, 0.75, 2)]
    assert [(swap.policy_version, swap.pause_seconds) for swap in snapshot.swaps] == [(1, 0.2)]
    assert [(point.value, point.policy_version) for point in snapshot.scores] == [(1.0, 0), (1.0, 1)]
    assert snapshot.scores[-1].id == last.id
    assert snapshot.total_scores == 3
    assert (snapshot.coverage.completed, snapshot.coverage.scored, snapshot.coverage.fraction) == (5, 3, 0.6)
    everything = await service_.snapshot()
    assert everything.scores[0].id == replaced.id


async def test_a_snapshot_takes_the_same_number_of_queries_however_much_there_is(database, chats, service) -> None:
    statements: list[str] = []

    @event.listens_for(database._engine.sync_engine, "before_cursor_execute")
    def _count(_connection, _cursor, statement, *_rest) -> None:
        statements.append(statement)

    status = StatusService(database)
    await status.snapshot()
    empty = len(statements)
    for number in range(1, 6):
        await add_version(database, number)
    for row in await chats.bulk(30):
        await service.submit(FeedbackSubmission(row.completion_id, 1.0))
    statements.clear()
    await status.snapshot()
    assert len(statements) == empty


async def test_pausing_and_resuming(database, tmp_path) -> None:
    control = ControlService(database, tmp_path)
    paused = await control.pause_learner("looking at version 3")
    assert (paused.paused, paused.pause_reason) == (True, "looking at version 3")
    assert (await control.pause_learner()).pause_reason == "paused by the operator"
    resumed = await control.resume_learner()
    assert (resumed.paused, resumed.pause_reason) == (False, None)
    async with database.read() as session:
        assert (await learner.get(session)).paused is False
    with pytest.raises(InvalidRequestError):
        await control.pause_learner("x" * 501)


async def test_versions_are_listed_in_pages(database, tmp_path) -> None:
    for number in (1, 2, 3):
        await add_version(database, number)
    control = ControlService(database, tmp_path)
    assert [version.version for version in await control.versions(limit=2)] == [3, 2]
    assert [(v.version, v.state) for v in await control.versions(limit=5, before=2)] == [(1, VersionState.RETIRED), (0, VersionState.RETIRED)]


CONTENT = ("messages", "prompt_ids", "token_ids", "behavior_logprobs", "version_spans", "text", "user", "episode_id")


async def test_erasing_removes_content_and_keeps_counts(database, chats, service) -> None:
    row = await chats.completed(user="ada")
    other = await chats.completed(user="bob")
    receipt, _ = await service.submit(FeedbackSubmission(row.completion_id, 1.0, comment="my name is Ada"))
    erasure = ErasureService(database)
    assert await erasure.erase_completion(row.completion_id) == 1
    async with database.read() as session:
        erased = await interactions.get(session, row.completion_id, 0)
        # Read as stored, not as mapped: a JSON null would look the same to the mapper and be none to SQL.
        left = (
            await session.execute(
                select(*(getattr(InteractionRow, name).is_(None) for name in CONTENT)).where(InteractionRow.id == row.id),
            )
        ).one()
        comments = list(await session.scalars(select(FeedbackRow.comment)))
        kept = await interactions.get(session, other.completion_id, 0)
    assert all(left)
    assert (erased.stored, erased.request_metadata, erased.sampling) == (False, {}, {})
    assert (erased.prompt_tokens, erased.completion_tokens, erased.policy_version, erased.status) == (3, 2, 0, "completed")
    assert comments == [None]
    assert (kept.user, kept.text) == ("bob", "hi")
    after = await service.get(receipt.id)
    assert (after.status, after.reason, after.value) == (ReceiptStatus.EXPIRED, "erased", 1.0)
    assert await erasure.erase_completion(row.completion_id) == 1
    with pytest.raises(CompletionNotFoundError):
        await erasure.erase_completion("chatcmpl-nothing")


@pytest.mark.only_on("sqlite")
async def test_what_is_erased_is_in_no_file_of_the_database(database, chats, service) -> None:
    """Short texts lie in the row, long ones in pages of their own, users in an index; the log keeps pages as they were."""
    long = "a secret of many pages " * 2000
    row = await chats.completed(user="secret-ada")
    async with database.write() as session:
        (stored,) = await interactions.by_completion(session, row.completion_id, lock=True)
        stored.text, stored.messages = long, [{"role": "user", "content": f"secret short. {long}"}]
    await service.submit(FeedbackSubmission(row.completion_id, 1.0, comment="secret comment"))
    others = [await chats.completed(user="bob") for _ in range(5)]
    path = sqlite_path(database.url)
    erasure = ErasureService(database)

    def found() -> bool:
        return any(b"secret" in file.read_bytes() for file in path.parent.glob(f"{path.name}*"))

    assert found()
    async with database.read() as reading:
        assert await interactions.get(reading, others[0].completion_id, 0) is not None
        assert await erasure.erase_user("secret-ada") == 1
        assert found(), "somebody reads: the pages of before are still theirs to see"
    await erasure.finish()
    assert not found()


async def test_erasing_a_user_breaks_the_claim_that_holds_their_data(database, chats, service) -> None:
    mine, used, yours = [await chats.completed(user=user) for user in ("ada", "ada", "bob")]
    for row in (mine, yours):
        await service.submit(FeedbackSubmission(row.completion_id, 1.0))
    async with database.write() as session:
        await lifecycle.claim(session, limit=5, claim_id="c", expires_at=9e9, now=1.0)
    erasure = ErasureService(database)
    assert await erasure.erase_user("ada") == 2
    assert await erasure.erase_user("ada") == 0
    async with database.read() as session:
        states = {row.id: (await trajectories.by_interaction(session, row.id)).state for row in (mine, used, yours)}
    assert states == {mine.id: TrajectoryState.EXPIRED, used.id: TrajectoryState.EXPIRED, yours.id: TrajectoryState.CLAIMED}
    with pytest.raises(LeaseLostError):
        async with database.write() as session:
            await trajectories.renew_claim(session, "c", expected=2, expires_at=9e9)


@pytest.mark.parametrize("reason", [None, "greedy_sampling"])
async def test_what_is_erased_while_it_is_generated_is_never_written(database, chats, service, reason) -> None:
    (row,) = await chats.start(user="ada")
    assert await ErasureService(database).erase_user("ada") == 1
    early, _ = await service.submit(FeedbackSubmission(row.completion_id, 0.5, comment="nice"))
    assert (early.status, early.reason) == (ReceiptStatus.NOT_TRAINABLE, "erased")
    trajectory = await chats.finish(row, reason=reason)
    assert (trajectory.state, trajectory.reason) == (TrajectoryState.NOT_TRAINABLE, "erased")
    async with database.read() as session:
        done = await interactions.get(session, row.completion_id, 0)
    assert (done.text, done.token_ids, done.completion_tokens) == (None, None, 2)
    receipt, _ = await service.submit(FeedbackSubmission(row.completion_id, 1.0, comment="again"))
    assert (receipt.status, receipt.reason) == (ReceiptStatus.NOT_TRAINABLE, "erased")


async def add_process(database, name: str, *, spool_records: int = 0, silent: float = 0.0) -> None:
    """A serving process whose last sign of life was ``silent`` seconds ago."""
    async with database.write() as session:
        heartbeat = await leases.database_clock(session) - silent
        sign = ServingInstanceRow(owner=f"{name}:1:x", leading=False, spool_records=spool_records, started_at=0.0, heartbeat_at=heartbeat)
        await instances.beat(session, sign)


async def test_the_age_of_a_sign_of_life_is_by_the_clock_that_stamped_it(database) -> None:
    await add_process(database, "there", silent=60.0)
    (process,) = (await StatusService(database, clock=lambda: 50.0).snapshot()).processes
    assert process.heartbeat_age == pytest.approx(60.0, abs=10.0)


@pytest.mark.parametrize("other", [{"spool_records": 2}, {"silent": 60.0}], ids=["has-a-spool", "says-nothing"])
async def test_nothing_is_erased_while_another_server_may_hold_more(database, chats, other) -> None:
    row = await chats.completed(user="ada")
    await add_process(database, "here")
    await add_process(database, "there", **other)
    erasure = ErasureService(database)
    for asked in (erasure.erase_completion(row.completion_id), erasure.erase_completion("chatcmpl-spooled"), erasure.erase_user("ada")):
        with pytest.raises(StorageError, match="another server's spool") as refused:
            await asked
        assert refused.value.headers["Retry-After"] == "2"
    async with database.read() as session:
        assert (await interactions.get(session, row.completion_id, 0)).stored
    await add_process(database, "there")
    assert await erasure.erase_user("ada") == 1
