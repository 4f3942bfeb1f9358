"""The cycle, turn by turn: what it publishes and refuses, and what a rollback, an erasure or a failure amid an update leaves behind."""

import math
import sqlite3
import time

import pytest
import torch

from online_sao.config import GateSettings
from online_sao.publishing import publisher
from online_sao.publishing.policy_store import verify
from online_sao.storage.repositories import learner, policies, probes
from online_sao.storage.tables import ProbeRow
from online_sao.types import TrajectoryState, VersionState


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


async def test_scores_become_a_staged_version(stand):
    ids = await stand.score()
    stand.start()
    await stand.until(lambda: stand.on_update(1))

    update = await stand.update(1)
    assert (update.accepted, update.policy_version, update.parent_version, update.reason) == (True, 1, 0, None)
    assert update.metrics["policy/masked_fraction"] == 0.0
    assert update.metrics["data/policy_lag_max"] == 0.0
    assert all(math.isfinite(value) for value in update.metrics.values())
    assert sum(update.ratio_histogram["counts"]) == 4
    for trajectory_id in ids:
        row = await stand.trajectory(trajectory_id)
        assert (row.state, row.update_number, row.policy_lag, row.masked_fraction) == (TrajectoryState.TRAINED, 1, 0, 0.0)
    async with stand.database.read() as session:
        version = policies.to_record(await policies.get(session, 1))
    assert (version.state, version.parent, version.update, version.path) == (VersionState.STAGED, 0, 1, "v000001")
    manifest = verify(stand.data_dir / "policy_store" / "v000001", base_digest="tiny")
    assert manifest.served_digest == version.served_digest == stand.bench.learner.served_digest()
    assert stand.names("checkpoints") == ["update-000001"]

    await stand.score(policy_version=0)
    await stand.until(lambda: stand.on_update(2))
    assert (await stand.update(2)).metrics["data/policy_lag_max"] == 1.0


async def test_only_the_newest_checkpoints_stay(stand):
    stand.settings.learning.keep_checkpoints = 2
    stand.start()
    for number in range(1, 5):
        await stand.score(policy_version=number - 1)
        await stand.until(lambda number=number: stand.on_update(number))
    await stand.stop()
    assert stand.names("checkpoints") == ["update-000003", "update-000004"]


async def test_a_paused_learner_claims_nothing_and_says_so(stand):
    async with stand.database.write() as session:
        await learner.pause(session, "by hand")
    await stand.score()
    stand.start()

    async def phase() -> bool:
        return stand.status._phase == "paused"

    await stand.until(phase)
    assert await stand.states() == {TrajectoryState.READY: 2}
    async with stand.database.write() as session:
        await learner.resume(session)
    await stand.until(lambda: stand.on_update(1))


async def test_a_refused_update_leaves_no_trace_in_the_weights(stand):
    stand.start()
    await stand.score()
    await stand.until(lambda: stand.on_update(1))
    await stand.stop()
    policy, value = stand.bench.policy(), stand.bench.value()
    stand.settings.gates = GateSettings(min_entropy=50.0)
    ids = await stand.score(policy_version=1)
    stand.start()

    async def rejected() -> bool:
        return (await stand.trajectory(ids[0])).state == TrajectoryState.REJECTED

    await stand.until(rejected)

    assert same(policy, stand.bench.policy())
    assert same(value, stand.bench.value())
    assert stand.bench.learner.updates == 1
    update = await stand.update(2)
    assert (update.accepted, update.policy_version) == (False, None)
    assert "policy/entropy" in update.reason
    assert (await stand.trajectory(ids[1])).reason == update.reason
    assert (await stand.head()).head_update == 1
    assert stand.names("policy_store") == ["v000001"]

    # An update number is never given twice, and a refused one moved no weights: it adds no lag.
    await stand.stop()
    stand.settings.gates = GateSettings(min_entropy=0.0)
    await stand.score(policy_version=1)
    stand.start()
    await stand.until(lambda: stand.on_update(3))
    assert (await stand.update(3)).metrics["data/policy_lag_max"] == 0.0


async def test_an_update_that_fails_is_refused_and_the_cycle_goes_on(stand, monkeypatch):
    update = stand.bench.learner.update

    def fail_once(batch, cancelled):
        monkeypatch.setattr(stand.bench.learner, "update", update)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(stand.bench.learner, "update", fail_once)
    await stand.score()
    stand.start()

    async def refused() -> bool:
        return await stand.update(1) is not None

    await stand.until(refused)
    assert (await stand.update(1)).reason == "the update failed: RuntimeError: out of memory"
    await stand.score()
    await stand.until(lambda: stand.on_update(2))
    assert await stand.states() == {TrajectoryState.REJECTED: 2, TrajectoryState.TRAINED: 2}


# --- in the middle of an update ---------------------------------------------------------------------------------------------------------------


def roll_back(stand) -> None:
    """As another process does it, at an instant of the test's choosing."""
    connection = sqlite3.connect(stand.database.url.removeprefix("sqlite+aiosqlite:///"), timeout=30)
    connection.execute("UPDATE learner SET lineage_epoch = lineage_epoch + 1, paused = 1, pause_reason = 'rolled back'")
    connection.commit()
    connection.close()


def expire_first(stand, trajectory_id: int) -> None:
    connection = sqlite3.connect(stand.database.url.removeprefix("sqlite+aiosqlite:///"), timeout=30)
    connection.execute("UPDATE trajectories SET state = 'expired', reason = 'erased', claim_id = NULL WHERE id = ?", (trajectory_id,))
    connection.commit()
    connection.close()


def during_update(stand, monkeypatch, happening) -> None:
    update = stand.bench.learner.update

    def wrapped(batch, cancelled):
        report = update(batch, cancelled)
        happening()
        return report

    monkeypatch.setattr(stand.bench.learner, "update", wrapped)


def after_the_commit_point(monkeypatch, happening) -> None:
    write_files = publisher.write_files

    def wrapped(*arguments):
        happening()
        return write_files(*arguments)

    monkeypatch.setattr(publisher, "write_files", wrapped)


@pytest.mark.parametrize("moment", ["during the update", "after the commit point"])
async def test_an_update_of_an_abandoned_lineage_is_discarded(stand, monkeypatch, moment):
    policy = stand.bench.policy()
    if moment == "during the update":
        during_update(stand, monkeypatch, lambda: roll_back(stand))
    else:
        after_the_commit_point(monkeypatch, lambda: roll_back(stand))
    await stand.score()
    stand.start()

    async def given_back() -> bool:
        return (await stand.head()).paused and await stand.states() == {TrajectoryState.READY: 2}

    await stand.until(given_back)
    assert same(policy, stand.bench.policy())
    assert stand.names("checkpoints") == []
    assert await stand.update(1) is None
    monkeypatch.undo()
    async with stand.database.write() as session:
        await learner.resume(session)
    await stand.until(lambda: stand.on_update(1))
    assert (await stand.update(1)).lineage_epoch == 1


async def test_a_claim_broken_during_the_update_discards_it(stand, monkeypatch):
    ids = await stand.score()
    policy = stand.bench.policy()
    during_update(stand, monkeypatch, lambda: expire_first(stand, ids[0]))
    stand.start()

    async def given_back() -> bool:
        return await stand.states() == {TrajectoryState.EXPIRED: 1, TrajectoryState.READY: 1}

    await stand.until(given_back)
    await stand.stop()
    assert same(policy, stand.bench.policy())
    assert stand.names("checkpoints") == []
    assert await stand.update(1) is None


async def test_what_is_erased_after_the_commit_point_stays_erased_and_the_update_stands(stand, monkeypatch):
    ids = await stand.score()
    after_the_commit_point(monkeypatch, lambda: expire_first(stand, ids[0]))
    stand.start()
    await stand.until(lambda: stand.on_update(1))
    assert await stand.states() == {TrajectoryState.EXPIRED: 1, TrajectoryState.TRAINED: 1}


# --- where it stands --------------------------------------------------------------------------------------------------------------------------


async def test_a_moved_head_is_loaded(stand):
    initial = stand.bench.policy()
    stand.start()
    weights = {0: initial}
    for number in (1, 2):
        await stand.score(policy_version=number - 1)
        await stand.until(lambda number=number: stand.on_update(number))
        weights[number] = stand.bench.policy()

    for version in (1, 0):
        async with stand.database.write() as session:
            await learner.set_head(session, head_version=version, head_update=version)

        async def loaded(version: int = version) -> bool:
            return same(weights[version], stand.bench.policy())

        await stand.until(loaded)


async def test_a_committed_update_of_an_abandoned_lineage_is_removed_at_start(stand, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*arguments):
        raise Killed

    monkeypatch.setattr(publisher, "write_files", die)
    await stand.score()
    stand.start()
    with pytest.raises(Killed):
        await stand.until(lambda: stand.on_update(1))
    stand._task = None
    assert stand.names("checkpoints") == ["update-000001"]
    monkeypatch.undo()
    roll_back(stand)

    stand.start()

    async def removed() -> bool:
        return stand.names("checkpoints") == []

    await stand.until(removed)

    async def given_back() -> bool:
        return await stand.states() == {TrajectoryState.READY: 2}

    await stand.until(given_back)
    assert await stand.update(1) is None


# --- the self-check ---------------------------------------------------------------------------------------------------------------------------


async def insert_probe(stand, version: int, *, wrong_by: float = 0.0, tolerance: float = 1e-3) -> None:
    """A probe as an engine would have it that serves what the learner stands on, or nearly."""
    logprobs = [logprob + wrong_by for logprob in stand.bench.learner.score([1, 2], [3, 4, 5], 1.0)]
    probe = ProbeRow(
        policy_version=version,
        prompt="p",
        prompt_ids=[1, 2],
        token_ids=[3, 4, 5],
        behavior_logprobs=logprobs,
        text="t",
        tolerance=tolerance,
        created_at=time.time(),
    )
    async with stand.database.write() as session:
        await probes.insert(session, [probe])


async def probe_differences(stand, version: int) -> list[float | None]:
    async with stand.database.read() as session:
        return [probe.mean_abs_difference for probe in await probes.by_version(session, version)]


async def test_probes_are_checked_under_the_version_that_sampled_them(stand):
    await insert_probe(stand, 0)
    stand.start()
    await stand.score()
    await stand.until(lambda: stand.on_update(1))
    assert await probe_differences(stand, 0) == [pytest.approx(0.0, abs=1e-6)]
    await insert_probe(stand, 1)

    await stand.score(policy_version=1)
    await stand.until(lambda: stand.on_update(2))  # the learner may have moved on before it looks

    async def checked() -> bool:
        return await probe_differences(stand, 1) != [None]

    await stand.until(checked)
    assert await probe_differences(stand, 1) == [pytest.approx(0.0, abs=1e-6)]
    assert not (await stand.head()).paused

    await stand.stop()
    await insert_probe(stand, 1)  # sampled from version 2, said to be from version 1
    stand.start()

    async def alarmed() -> bool:
        return (await stand.head()).paused

    await stand.until(alarmed)
    assert (await probe_differences(stand, 1))[-1] > 1e-3


async def test_what_the_engines_number_format_explains_stops_nothing(stand):
    await insert_probe(stand, 0, wrong_by=0.01, tolerance=0.02)
    stand.start()
    await stand.score()
    await stand.until(lambda: stand.on_update(1))
    assert await probe_differences(stand, 0) == [pytest.approx(0.01, abs=1e-6)]
    assert not (await stand.head()).paused


async def test_an_engine_that_samples_from_other_weights_stops_learning_loudly(stand):
    await insert_probe(stand, 0, wrong_by=0.01)
    await stand.score()
    stand.start()

    async def alarmed() -> bool:
        return stand.status._phase == "alarm"

    await stand.until(alarmed)
    row = await stand.head()
    assert row.paused
    assert row.pause_reason.startswith("self-check failed for version 0")
    assert await stand.states() == {TrajectoryState.READY: 2}

    async with stand.database.write() as session:
        await learner.resume(session)
    await stand.until(lambda: stand.on_update(1))


async def test_a_probe_whose_version_cannot_be_read_is_an_alarm_too(stand):
    stand.start()
    await stand.score()
    await stand.until(lambda: stand.on_update(1))
    await stand.score(policy_version=1)
    await stand.until(lambda: stand.on_update(2))
    await stand.stop()
    (stand.data_dir / "policy_store" / "v000001" / "adapter_model.safetensors").write_bytes(b"damaged")
    await insert_probe(stand, 1)
    stand.start()

    async def alarmed() -> bool:
        return (await stand.head()).paused

    await stand.until(alarmed)
    assert "checksum" in (await stand.head()).pause_reason


async def test_logged_scores_teach_a_fresh_value_model_before_the_policy_moves(stand):
    stand.settings.learning.value_pretraining_min_scores = 6
    await stand.score(6)
    seen = []
    pretrain = stand.bench.learner.pretrain_value

    def spy(trajectories, **options):
        seen.append((stand.bench.learner.updates, [t.trajectory_id for t in trajectories]))
        return pretrain(trajectories, **options)

    stand.bench.learner.pretrain_value = spy
    stand.start()
    await stand.until(lambda: stand.on_update(3))
    ((updates_before, trained_on),) = seen  # once, before the first update, on all that was scored
    assert updates_before == 0
    assert len(trained_on) == 6
    # Nothing was consumed by it: each trajectory trained the policy afterwards, once.
    assert await stand.states() == {TrajectoryState.TRAINED: 6}


@pytest.mark.parametrize("least", [0, 7])
async def test_no_pretraining_where_it_is_off_or_too_little_is_logged(stand, least):
    stand.settings.learning.value_pretraining_min_scores = least
    await stand.score(6)
    stand.bench.learner.pretrain_value = None  # calling it would fail the cycle
    stand.start()
    await stand.until(lambda: stand.on_update(3))


async def test_a_stop_amid_pretraining_leaves_the_learner_as_it_was(stand):
    stand.settings.learning.value_pretraining_min_scores = 6
    await stand.score(6)
    pretrain, value = stand.bench.learner.pretrain_value, stand.bench.value()

    def told_to_stop(trajectories, **options):
        stand._stopping.set()
        return pretrain(trajectories, **options)

    stand.bench.learner.pretrain_value = told_to_stop
    stand.start()
    await stand._task
    assert same(value, stand.bench.value())
    assert await stand.states() == {TrajectoryState.READY: 6}
