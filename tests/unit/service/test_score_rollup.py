"""Rolled-up sums plus what came since must equal the sums over everything, whatever happens between two runs of the job."""

import random

import pytest
from sqlalchemy import delete, update

from online_sao.service.score_rollup import SETTLED_SECONDS, ScoreRollup
from online_sao.service.status import StatusService, score_tail
from online_sao.storage.repositories import score_rollups
from online_sao.storage.repositories.score_rollups import Sums
from online_sao.storage.tables import FeedbackRow, InteractionRow
from online_sao.types import InteractionStatus

START = 1_000_000.0


class Traffic:
    """Answers and scores at made-up times."""

    def __init__(self, database) -> None:
        self.database = database
        self.now = START
        self.numbers = iter(range(1, 10_000))

    async def answer(self, version: int, status: str = InteractionStatus.COMPLETED) -> int:
        number = next(self.numbers)
        row = InteractionRow(
            id=number,
            completion_id=f"chatcmpl-{number}",
            choice=0,
            request_id="r",
            model="m",
            status=status,
            stored=True,
            request_metadata={},
            sampling={},
            policy_version=version,
            prompt_tokens=1,
            created_at=self.now,
        )
        async with self.database.write() as session:
            session.add(row)
        return number

    async def score(self, interaction: int, value: float, *, replaces: str | None = None, metric: str = "score", refused: str | None = None) -> str:
        identity = f"fb-{next(self.numbers)}"
        row = FeedbackRow(
            id=identity, interaction_id=interaction, metric=metric, value=value, refused_reason=refused, body_digest="d", created_at=self.now
        )
        async with self.database.write() as session:
            session.add(row)
            await session.flush()
            if replaces is not None:
                await session.execute(update(FeedbackRow).where(FeedbackRow.id == replaces).values(superseded_by=identity))
        return identity


async def known(database) -> dict[int, Sums]:
    async with database.read() as session:
        return await score_rollups.by_version(session, range(20), await score_tail(session))


async def counted(database) -> dict[int, Sums]:
    """The same from the rows alone."""
    async with database.read() as session:
        found: dict[int, Sums] = {}
        for (version, _), sums in (await score_rollups.change(session, None, None)).items():
            found[version] = found.get(version, Sums()).plus(sums)
        return found


def close(left: dict[int, Sums], right: dict[int, Sums]) -> bool:
    return left.keys() == right.keys() and all(
        (a.scores, a.completed) == (right[v].scores, right[v].completed)
        and a.total == pytest.approx(right[v].total)
        and a.total_squares == pytest.approx(right[v].total_squares)
        for v, a in left.items()
    )


@pytest.mark.parametrize("seed", range(4))
async def test_sums_are_exact_after_any_traffic(database, seed) -> None:
    rng = random.Random(seed)
    traffic = Traffic(database)
    rollup = ScoreRollup(database, clock=lambda: traffic.now)
    standing: list[tuple[int, str]] = []
    expected: dict[str, tuple[int, float]] = {}  # feedback id → (version, value), kept by hand
    for _ in range(60):
        traffic.now += rng.choice((1.0, 20.0, 90.0, 4000.0))
        kind = rng.random()
        if kind < 0.2:
            await rollup.advance()
        elif kind < 0.5 and standing:
            place = rng.randrange(len(standing))
            interaction, old = standing[place]
            value = rng.choice((0.0, 0.25, 1.0))
            new = await traffic.score(interaction, value, replaces=old)
            expected[new] = (expected.pop(old)[0], value)
            standing[place] = (interaction, new)
        elif kind < 0.6 and standing:
            await traffic.score(standing[0][0], 0.9, refused="already_used")
            await traffic.score(standing[0][0], 0.9, metric="tone")
        else:
            version = rng.randrange(3)
            interaction = await traffic.answer(version)
            identity = await traffic.score(interaction, rng.random())
            async with database.read() as session:
                value = (await session.get_one(FeedbackRow, identity)).value
            expected[identity] = (version, value)
            standing.append((interaction, identity))
        found = await known(database)
        for version in range(3):
            values = [value for of, value in expected.values() if of == version]
            sums = found.get(version, Sums())
            assert (sums.scores, sums.total) == (len(values), pytest.approx(sum(values)))
            assert sums.total_squares == pytest.approx(sum(value * value for value in values))
    async with database.read() as session:
        assert await score_rollups.mark(session) is not None


async def test_only_settled_scores_of_ended_answers_are_rolled_up(database) -> None:
    traffic = Traffic(database)
    rollup = ScoreRollup(database, clock=lambda: traffic.now)
    await traffic.score(await traffic.answer(1), 1.0)
    traffic.now += 10.0
    writing = await traffic.answer(1, InteractionStatus.GENERATING)
    await traffic.score(writing, 0.5)
    traffic.now += SETTLED_SECONDS + 100.0
    await rollup.advance()
    async with database.read() as session:
        assert (await score_rollups.mark(session)).settled_at == START + 10.0
    # A swap changes the version that the answer counts for, after it was scored.
    async with database.write() as session:
        await session.execute(update(InteractionRow).where(InteractionRow.id == writing).values(status="completed", policy_version=2))
    traffic.now += 1.0
    await rollup.advance()
    assert close(await known(database), await counted(database))
    assert (await known(database))[2].total == 0.5


async def test_a_past_that_changed_is_summed_anew(database) -> None:
    traffic = Traffic(database)
    rollup = ScoreRollup(database, clock=lambda: traffic.now)
    first = await traffic.answer(1)
    identity = await traffic.score(first, 1.0)
    traffic.now += 500.0
    await rollup.advance()
    traffic.now = START - 50.0  # the clock was set back
    await traffic.score(await traffic.answer(1), 0.0)
    traffic.now = START + 600.0
    await rollup.advance()
    assert (await known(database))[1] == Sums(2, 1.0, 1.0, 2)
    async with database.write() as session:
        await session.execute(delete(FeedbackRow).where(FeedbackRow.id == identity))
    traffic.now += 100.0
    await rollup.advance()
    assert (await known(database))[1] == Sums(1, 0.0, 0.0, 1)


async def test_the_snapshot_says_the_same_before_and_after_a_roll_up(database) -> None:
    traffic = Traffic(database)
    for value in (0.0, 1.0, 1.0, 0.5):
        await traffic.score(await traffic.answer(0), value)
        traffic.now += 3000.0
    await traffic.answer(0)
    status = StatusService(database, clock=lambda: traffic.now)
    before = await status.snapshot()
    await ScoreRollup(database, clock=lambda: traffic.now).advance()
    after = await status.snapshot()
    assert (after.versions, after.total_scores, after.coverage) == (before.versions, before.total_scores, before.coverage)
    assert (after.total_scores, after.coverage.completed, after.coverage.scored) == (4, 5, 4)
    low, high = after.versions[0].score_interval
    # mean 0.625, sample variance 0.2292; Student's t for 3 degrees of freedom at 95 %: 3.182
    half = 3.1824 * (0.229167 / 4) ** 0.5
    assert (low, high) == (pytest.approx(0.625 - half, abs=1e-3), pytest.approx(0.625 + half, abs=1e-3))
