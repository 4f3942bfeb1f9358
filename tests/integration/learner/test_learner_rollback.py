"""Rollbacks around a learner process that is killed: nothing of the lineage left is applied, nothing is lost, and it stands where it was told to."""

import asyncio
import hashlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from online_sao.publishing import lifecycle
from online_sao.service.control import ControlService
from online_sao.storage.repositories import policies
from online_sao.storage.session import Database
from online_sao.types import VersionState


def on_database(home, work):
    async def run():
        database = Database(f"sqlite+aiosqlite:///{home.file}")
        try:
            return await work(database)
        finally:
            await database.dispose()

    return asyncio.run(run())


def serve(home, version: int) -> None:
    """What a server does to the rows when its engine has loaded the version."""

    async def work(database):
        async with database.write() as session:
            row = await policies.get(session, version)
            if row.state == VersionState.STAGED:
                await lifecycle.move_version(session, version, VersionState.VERIFIED, now=time.time())
            await lifecycle.activate(session, version, time.time())

    on_database(home, work)


def roll_back(home, version: int, *, resume: bool = True) -> None:
    on_database(home, lambda database: ControlService(database, home.data_dir / "policy_store").rollback(version, resume=resume, reason="test"))


def learn(home, version: int) -> None:
    """One more batch, learned by the running learner and served."""
    home.insert_scored()
    home.wait_for(f"version {version}", lambda: home.head()[0] == version)
    serve(home, version)


def stop(home) -> None:
    home.process.send_signal(signal.SIGTERM)
    assert home.process.wait(timeout=30) == 0


def versions(home):
    return home.rows("SELECT version, parent, lineage_epoch, state FROM policy_versions ORDER BY version")


def policy_of(home, version: int) -> dict[str, torch.Tensor]:
    published = load_file(home.data_dir / "policy_store" / f"v{version:06d}" / "adapter_model.safetensors")
    return {name.removeprefix("base_model.model."): tensor for name, tensor in published.items()}


def sha(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("point", ["inside the update", "after the checkpoint's rename", "after the publish's rename", "after the transaction"])
def test_killed_and_then_rolled_back(home, point):
    """The learner dies making version 3; the operator goes back to 1 while it is dead."""
    home.fork()
    learn(home, 1)
    first = sha(home.checkpoint(1) / "policy.safetensors")
    learn(home, 2)
    stop(home)
    home.insert_scored()
    assert home.fork(point).wait(timeout=120) == -signal.SIGKILL, home.log()
    recorded = point == "after the transaction"
    assert home.head() == ((3, 3) if recorded else (2, 2))

    roll_back(home, 1)
    assert home.head() == (1, 1)
    home.fork()
    if recorded:
        assert versions(home)[3] == (3, 2, 0, "failed"), "a version that had never served"
        home.insert_scored()
    # The batch of the dead learner was sampled from the base model, which is no part of what was left: it is learned from again.
    home.wait_for("an update on version 1", lambda: home.head()[0] not in (1, 2))
    version, update = home.head()
    assert version == (4 if recorded else 3)
    assert versions(home)[version] == (version, 1, 1, "staged")
    assert home.rows("SELECT parent_version FROM updates WHERE update_number = ?", update) == [(1,)]
    assert home.count("claimed") == 0
    assert home.count("trained") == 16 if recorded else 12
    stop(home)
    assert sha(home.checkpoint(1) / "policy.safetensors") == first
    assert torch.load(home.checkpoint(update) / "training.pt", weights_only=True)["updates"] == 2


def test_rolled_back_and_then_killed(home):
    """The rollback is on disk; the learner dies before it has taken notice, and again once it has."""
    home.fork()
    for version in (1, 2):
        learn(home, version)
    home.process.kill()
    home.process.wait()
    roll_back(home, 1, resume=False)
    home.insert_scored()
    for _ in range(2):
        home.fork()
        home.wait_for("it is paused where it was put", lambda: home.phase() == "paused")
        assert "rolled back to version 1: test" in home.rows("SELECT pause_reason FROM learner")[0][0]
        home.process.kill()
        home.process.wait()
    assert (home.head(), home.count("ready")) == ((1, 1), 4)
    home.fork()
    home.execute("UPDATE learner SET paused = 0, pause_reason = NULL")
    home.wait_for("it goes on from there", lambda: home.head()[0] == 3)
    assert versions(home)[3][:3] == (3, 1, 1)


def test_it_stands_on_a_published_version_whose_checkpoint_is_gone_and_on_the_base_and_goes_forward_again(home):
    home.fork(ONLINE_SAO_LEARNING__KEEP_CHECKPOINTS="2")
    for version in (1, 2, 3):
        learn(home, version)
    assert home.checkpoints() == [2, 3]
    roll_back(home, 1, resume=False)
    home.execute("UPDATE learner SET paused = 0")

    def detail() -> str:
        return home.rows("SELECT detail FROM learner")[0][0] or ""

    home.wait_for("it says what it does without", lambda: "standing on version 1 as published" in detail())
    assert "the value model of update 3" in detail()
    assert "standing on version 1 as published, with fresh optimisers and the value model of update 3" in home.log()
    serve(home, 1)
    learn(home, 4)
    home.wait_for("it has what it needs again", lambda: detail() == "")
    moved, start = policy_of(home, 4), policy_of(home, 1)
    assert moved.keys() == start.keys()
    assert 0 < max(float((moved[name] - start[name]).abs().max()) for name in start) < 0.01, "one small step away from version 1"

    roll_back(home, 0)
    serve(home, 0)
    learn(home, 5)
    assert versions(home)[5][:3] == (5, 0, 2)
    roll_back(home, 3)
    serve(home, 3)
    learn(home, 6)
    assert versions(home)[6][:3] == (6, 3, 3)
    stop(home)


def test_one_that_can_stand_nowhere_ends_for_good_and_says_why(home):
    home.fork()
    learn(home, 1)
    stop(home)
    shutil.rmtree(home.data_dir / "checkpoints")
    (home.data_dir / "policy_store" / "v000001" / "adapter_model.safetensors").unlink()
    command = [sys.executable, "-m", "online_sao.cli", "learn"]
    ended = subprocess.run(command, cwd=home.data_dir, env=home.full_environment(), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    (phase, detail) = home.rows("SELECT phase, detail FROM learner")[0]
    assert phase == "stopped"
    assert "adapter_model.safetensors is missing" in detail
    assert "Roll back to another version" in detail
    assert detail in ended.stderr.replace("\n", "")
    roll_back(home, 0)
    home.insert_scored()
    home.fork()
    home.wait_for("the way out it named works", lambda: home.head()[0] == 2)


def test_a_checkpoint_that_cannot_be_read_is_as_good_as_none(home):
    home.fork()
    learn(home, 1)
    stop(home)
    (home.checkpoint(1) / "training.pt").write_bytes(b"torn")
    home.insert_scored()
    home.fork()
    home.wait_for("it goes on", lambda: home.head()[0] == 2)
    assert "an untrained value model" in home.log()
