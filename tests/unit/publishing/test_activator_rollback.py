"""The engine follows a rollback: before a new version, whole or not at all, and ACTIVE is always what it really has."""

import time
from pathlib import Path

import pytest
from test_activator_start import publish

from online_sao.errors import EngineError, PolicyStoreError
from online_sao.inference.engine import SwapReport
from online_sao.models.fingerprint import ServedDigest
from online_sao.publishing import rollback
from online_sao.publishing.activator import Activator
from online_sao.publishing.published import PublishedVersions
from online_sao.storage.repositories import learner, policies
from online_sao.types import VersionState


class Engine:
    """Serves whatever it is told to. ``digests``: version → what it then says of its weights; ``happening`` runs amid the next swap."""

    def __init__(self, version: int) -> None:
        self.policy_version = version
        self.healthy = True
        self.digests: dict[int, tuple[float, ...]] = {}
        self.swaps: list[tuple[int, Path | None]] = []
        self.happening = None
        self.error: Exception | None = None

    async def swap(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        if self.happening is not None:
            happening, self.happening = self.happening, None
            await happening()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.policy_version = policy_version
        self.swaps.append((policy_version, adapter_dir))
        return SwapReport(policy_version, 0.1, 0.2, 3, 0, ServedDigest(self.digests.get(policy_version, (1.0,))))


async def stage(database, store, version: int, parent: int, epoch: int) -> None:
    """A new version of today's lineage, waiting to be served."""
    await publish(database, store, version, parent=parent, epoch=epoch, served=False)
    async with database.write() as session:
        await learner.set_head(session, head_version=version, head_update=version)


@pytest.fixture
async def engine(database, tmp_path) -> Engine:
    """Three versions have served; the third does."""
    for version in (1, 2, 3):
        await publish(database, tmp_path, version)
        async with database.write() as session:
            await learner.set_head(session, head_version=version, head_update=version)
    return Engine(3)


async def go_back(database, version: int, *, resume: bool = False) -> None:
    async with database.write() as session:
        await rollback.roll_back(session, version, resume=resume, reason=None, now=time.time())


async def look(database):
    """(active version, states of all by number, newest rollback, the learner's row)"""
    async with database.read() as session:
        states = {row.version: row.state for row in await policies.newest(session)}
        return (await policies.active(session)).version, states, await policies.last_rollback(session), await learner.get(session)


async def test_the_engine_follows_and_then_takes_up_new_versions(database, tmp_path, engine) -> None:
    activator = Activator(database, engine, PublishedVersions(tmp_path, "base"))
    assert await activator.poll() is None
    await go_back(database, 1, resume=True)
    await stage(database, tmp_path, 4, parent=1, epoch=1)
    report = await activator.poll()
    assert (report.policy_version, engine.swaps) == (1, [(1, tmp_path / "v000001")]), "the rollback comes first"
    active, states, done, _ = await look(database)
    assert (active, states[3], states[4]) == (1, VersionState.RETIRED, VersionState.STAGED)
    assert (done.problem, done.served_at is not None) == (None, True)
    assert (await activator.poll()).policy_version == 4
    assert await activator.poll() is None
    # And forward again, to the lineage that was left; and to the base model, which has no files.
    await go_back(database, 3)
    assert (await activator.poll()).policy_version == 3
    await go_back(database, 0)
    assert (await activator.poll()).policy_version == 0
    assert engine.swaps[-1] == (0, None)


@pytest.mark.parametrize("fault", ["damaged file", "wrong digest", "engine error"])
async def test_a_version_that_cannot_be_loaded_leaves_the_one_before_and_says_so(database, tmp_path, engine, fault, caplog) -> None:
    activator = Activator(database, engine, PublishedVersions(tmp_path, "base"))
    await go_back(database, 2, resume=True)
    if fault == "damaged file":
        (tmp_path / "v000002" / "adapter_model.safetensors").write_bytes(b"torn")
    elif fault == "wrong digest":
        engine.digests[2] = (5.0,)
    else:
        engine.error = EngineError("out of memory")
    assert await activator.poll() is None
    active, states, done, row = await look(database)
    assert (engine.policy_version, active, states[2], states[3]) == (3, 3, VersionState.RETIRED, VersionState.ACTIVE)
    assert done.served_at is None
    assert {"damaged file": "checksum", "wrong digest": "digest", "engine error": "out of memory"}[fault] in done.problem
    assert row.paused, "a learner told to go on must not learn for a version nobody serves"
    assert row.pause_reason.startswith("the rollback failed: version 2 cannot be served")
    assert any(record.levelname == "CRITICAL" for record in caplog.records)
    assert await activator.poll() is None, "it is not tried for ever"
    # The way out: back to what serves, or to another.
    await go_back(database, 3)
    assert await activator.poll() is None
    await go_back(database, 1)
    assert (await activator.poll()).policy_version == 1


async def test_a_new_version_abandoned_while_it_is_loaded_never_becomes_active(database, tmp_path, engine) -> None:
    activator = Activator(database, engine, PublishedVersions(tmp_path, "base"))
    await stage(database, tmp_path, 4, parent=3, epoch=0)

    async def abandon() -> None:
        await go_back(database, 2)

    engine.happening = abandon
    assert await activator.poll() is None
    active, states, _, _ = await look(database)
    assert (engine.policy_version, active, states[4]) == (3, 3, VersionState.FAILED)
    assert (await activator.poll()).policy_version == 2


async def test_a_second_rollback_during_the_swap_of_the_first_is_followed_too(database, tmp_path, engine) -> None:
    activator = Activator(database, engine, PublishedVersions(tmp_path, "base"))
    await go_back(database, 2)

    async def further() -> None:
        await go_back(database, 1)

    engine.happening = further
    assert (await activator.poll()).policy_version == 2
    assert (await activator.poll()).policy_version == 1
    assert (await look(database))[0] == 1


async def test_a_failed_swap_does_not_pause_for_a_rollback_that_was_replaced_meanwhile(database, tmp_path, engine) -> None:
    activator = Activator(database, engine, PublishedVersions(tmp_path, "base"))
    await go_back(database, 2)

    async def further() -> None:
        await go_back(database, 1, resume=True)

    engine.happening, engine.error = further, EngineError("no")
    assert await activator.poll() is None
    assert not (await look(database))[3].paused
    assert (await activator.poll()).policy_version == 1


async def test_a_server_that_starts_again_serves_what_it_had_and_then_follows(database, tmp_path, engine) -> None:
    await go_back(database, 1)
    again = Activator(database, engine, PublishedVersions(tmp_path, "base"))
    assert (await again.start_version()).policy_version == 3
    assert (await again.poll()).policy_version == 1


async def test_a_damaged_active_version_is_not_replaced_by_one_that_was_rolled_back(database, tmp_path, engine) -> None:
    activator = Activator(database, engine, PublishedVersions(tmp_path, "base"))
    await go_back(database, 1)
    await activator.poll()
    await stage(database, tmp_path, 4, parent=1, epoch=1)
    await activator.poll()
    (tmp_path / "v000004" / "adapter_model.safetensors").write_bytes(b"torn")
    assert (await activator.start_version()).policy_version == 1, "not 3 or 2, which are newer"


async def test_a_failure_to_put_the_old_version_back_is_raised_and_the_rollback_is_ended_all_the_same(database, tmp_path, engine) -> None:
    activator = Activator(database, engine, PublishedVersions(tmp_path, "base"))
    await go_back(database, 1)
    engine.digests = {1: (5.0,), 3: (6.0,)}
    with pytest.raises(PolicyStoreError):
        await activator.poll()
    assert "digest" in (await look(database))[2].problem
