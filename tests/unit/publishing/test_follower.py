"""An engine that follows: on the ACTIVE version, whoever activated it, and never on weights that nobody vouches for."""

from __future__ import annotations

import pytest
from test_activator_rollback import Engine
from test_activator_start import publish

from online_sao.errors import EngineError, LeaseLostError, PolicyStoreError, StorageError
from online_sao.publishing import follower as module
from online_sao.publishing.activator import Activator
from online_sao.publishing.follower import Follower
from online_sao.publishing.published import PublishedVersions
from online_sao.storage.repositories import policies
from online_sao.storage.session import Session
from online_sao.types import VersionState


async def states(database) -> dict[int, str]:
    async with database.read() as session:
        return {row.version: row.state for row in await policies.newest(session)}


async def test_it_starts_on_the_active_version_and_follows_it(database, tmp_path) -> None:
    engine = Engine(0)
    follower = Follower(database, engine, PublishedVersions(tmp_path, "base"))
    start = await follower.start_version()
    assert (start.policy_version, start.adapter_dir) == (0, None)
    assert await follower.poll() is None
    await publish(database, tmp_path, 1)
    await publish(database, tmp_path, 2)
    report = await follower.poll()
    assert (report.policy_version, engine.swaps) == (2, [(2, tmp_path / "v000002")]), "straight to the one that serves"
    assert await follower.poll() is None


@pytest.mark.parametrize("fault", ["file", "digest", "engine"])
async def test_what_cannot_be_loaded_is_said_and_nothing_is_changed(database, tmp_path, monkeypatch, fault: str) -> None:
    await publish(database, tmp_path, 1)
    engine = Engine(1)
    follower = Follower(database, engine, PublishedVersions(tmp_path, "base"))
    await publish(database, tmp_path, 2)
    weights = tmp_path / "v000002" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    if fault == "file":
        weights.unlink()
    elif fault == "digest":
        engine.digests[2] = (9.0,)
    else:
        engine.error = EngineError("out of memory")
    before = await states(database)
    assert await follower.poll() is None
    assert (engine.policy_version, await states(database)) == (1, before)
    assert "version 2 cannot be loaded" in (follower.problem or "")
    if fault == "file":
        with pytest.raises(PolicyStoreError):
            await follower.start_version()
    weights.write_bytes(whole)
    engine.digests = {}
    assert await follower.poll() is None, "not tried again at once"
    monkeypatch.setattr(module.time, "monotonic", lambda: 1e12)
    report = await follower.poll()
    assert (report.policy_version, follower.problem) == (2, None)


async def test_wrong_weights_that_could_not_be_put_back_stay_a_problem_until_they_are_right(database, tmp_path, monkeypatch) -> None:
    await publish(database, tmp_path, 1)
    engine = Engine(1)
    follower = Follower(database, engine, PublishedVersions(tmp_path, "base"))
    await publish(database, tmp_path, 2)
    engine.digests[2] = (9.0,)
    (tmp_path / "v000001" / "adapter_model.safetensors").unlink()
    with pytest.raises(PolicyStoreError):
        await follower.poll()
    assert engine.policy_version == 2
    assert await follower.poll() is None
    assert "version 2 cannot be loaded" in (follower.problem or ""), "it has the number of the ACTIVE version, and not its weights"
    engine.digests = {}
    monkeypatch.setattr(module.time, "monotonic", lambda: 1e12)
    report = await follower.poll()
    assert (report.policy_version, follower.problem) == (2, None)


@pytest.mark.parametrize("error", [LeaseLostError("taken"), StorageError("away")])
async def test_an_activator_that_may_not_record_puts_back_and_fails_nothing(database, tmp_path, error) -> None:
    await publish(database, tmp_path, 1)
    await publish(database, tmp_path, 2, served=False)
    engine, fences = Engine(1), iter([None, error])

    async def fence(_: Session) -> None:
        raised = next(fences)
        if raised is not None:
            raise raised

    assert await Activator(database, engine, PublishedVersions(tmp_path, "base"), fence).poll() is None
    assert engine.policy_version == 1
    assert await states(database) | {0: "", 1: ""} == {0: "", 1: "", 2: VersionState.VERIFIED}
    report = await Activator(database, engine, PublishedVersions(tmp_path, "base")).poll()
    assert report.policy_version == 2
