"""Each quick check on a fit and an unfit subject; the model's own checks on the tiny model."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sqlite3

import pytest
import torch
from safetensors.torch import save_file
from tiny_model import tiny_model, write_random_adapter
from versions import add_version

from online_sao.config import Settings
from online_sao.publishing.policy_store import write_version
from online_sao.runtime import doctor, doctor_data, doctor_model
from online_sao.storage.repositories import learner
from online_sao.storage.session import sqlite_path
from online_sao.storage.tables import PolicyVersionRow


@pytest.fixture
def settings(tmp_path, databases) -> Settings:
    shutil.move(sqlite_path(databases.migrated()), tmp_path / "online_sao.db")
    return Settings(storage={"data_dir": tmp_path}, policy={"model": str(tiny_model())})


def test_versions_that_are_not_tested_are_said(monkeypatch):
    assert doctor.versions().state == "ok"
    monkeypatch.setitem(doctor.TESTED, "torch", "1.0")
    assert doctor.versions().state == "warn"


def test_spinning_threads_are_said(settings):
    assert doctor.threads(settings, {"OMP_WAIT_POLICY": "PASSIVE"}).state == "ok"
    assert "OMP_WAIT_POLICY=PASSIVE" in doctor.threads(settings, {}).advice
    many = Settings(engine={"threads": 1000})
    assert "lower" in doctor.threads(many, {"OMP_WAIT_POLICY": "passive"}).advice


def test_little_disk(settings, monkeypatch):
    free = {"bytes": 10e9}
    monkeypatch.setattr(doctor.psutil, "disk_usage", lambda path: type("Usage", (), {"free": free["bytes"]}))
    assert doctor.disk(settings).state == "ok"
    free["bytes"] = 300e6
    assert doctor.disk(settings).state == "warn"
    free["bytes"] = 10e6
    assert doctor.disk(settings).state == "fail"


async def test_a_port_is_free_or_taken(settings):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        taken = Settings(server={"port": other.getsockname()[1]})
        other.listen()
        other.settimeout(5)
        check = await doctor.port(taken)
        assert (check.state, "not this service" in check.found) == ("fail", True)
    assert (await doctor.port(taken)).state == "ok"


async def test_a_database_of_another_schema_and_a_paused_learner(settings, tmp_path, database):
    assert (await doctor_data.database(settings)).state == "ok"
    mine = Settings(storage={"data_dir": tmp_path, "database_url": database.url})
    async with database.write() as session:
        await learner.pause(session, "for the weekend")
    check = await doctor_data.database(mine)
    assert (check.state, "for the weekend" in check.found) == ("warn", True)
    (tmp_path / "online_sao.db").unlink()
    assert "none yet" in (await doctor_data.database(settings)).found
    sqlite3.connect(tmp_path / "online_sao.db").close()
    check = await doctor_data.database(settings)
    assert (check.state, "online-sao db upgrade" in check.advice) == ("fail", True)


async def test_the_policy_store_byte_for_byte(tmp_path, database):
    settings = Settings(storage={"data_dir": tmp_path, "database_url": database.url})

    def publish(version: int):
        return write_version(
            settings.policy_store_dir,
            version=version,
            parent=version - 1,
            lineage_epoch=0,
            update=version,
            served_digest=(1.0,),
            base_digest="d",
            write_files=lambda folder: (folder / "weights").write_text(f"weights {version}"),
        )

    folders = {version: publish(version) for version in (1, 2)}
    for version in (1, 2):
        await add_version(database, version)
        async with database.write() as session:
            (await session.get_one(PolicyVersionRow, version)).path = folders[version].name
    check = await doctor_data.policy_store(settings)
    assert (check.state, check.found[:10]) == ("ok", "2 versions")
    publish(3)
    check = await doctor_data.policy_store(settings)
    assert (check.state, "v000003" in check.found) == ("warn", True)
    (folders[1] / "weights").write_text("rotten")
    check = await doctor_data.policy_store(settings)
    assert (check.state, "v000001" in check.found) == ("warn", True)
    (folders[2] / "weights").unlink()
    check = await doctor_data.policy_store(settings)
    assert (check.state, "v000002" in check.found) == ("fail", True)


def test_memory_against_the_models_size(settings, monkeypatch):
    sizes = {"available": 8e9, "total": 16e9}
    monkeypatch.setattr(doctor_model.psutil, "virtual_memory", lambda: type("Memory", (), sizes))
    assert doctor_model.memory(settings).state == "ok"
    sizes["available"] = 1e8
    assert doctor_model.memory(settings).state == "warn"
    sizes["total"] = 1e9
    assert doctor_model.memory(settings).state == "fail"


async def test_the_self_check_on_the_active_version(tmp_path, database, monkeypatch):
    settings = Settings(storage={"data_dir": tmp_path, "database_url": database.url}, policy={"model": str(tiny_model())}, engine={"threads": 1})
    await add_version(database, 1)
    write_random_adapter(tiny_model(), settings.policy_store_dir / "p", seed=1)
    check = await doctor_model.self_check(settings)
    assert (check.state, "version 1" in check.found) == ("ok", True)
    original = doctor_model._plain_logprobs
    monkeypatch.setattr(doctor_model, "_plain_logprobs", lambda path, adapter, prompt, ids: original(path, None, prompt, ids))
    assert (await doctor_model.self_check(settings)).state == "fail", "an adapter that never reached the engine"


async def test_no_check_raises(settings, monkeypatch):
    def broken() -> doctor.Check:
        raise RuntimeError("boom")

    monkeypatch.setattr(doctor, "versions", broken)
    checks = await doctor.examine(settings, self_check=False)
    assert [check.name for check in checks] == ["versions", "threads", "disk", "port", "database", "policy store", "checkpoints", "model", "memory"]
    assert (checks[0].state, "boom" in checks[0].found) == ("fail", True)


def test_the_command_says_what_fails(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from online_sao.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    arguments = ["doctor", "--data-dir", str(tmp_path), "--no-self-check", "--json", "--port", "0"]
    done = CliRunner().invoke(app, [*arguments, "--model", str(tiny_model())])
    assert (done.exit_code, json.loads(done.stdout)["ok"]) == (0, True)
    done = CliRunner().invoke(app, [*arguments, "--model", str(tmp_path)])
    assert done.exit_code == 1
    failed = [check for check in json.loads(done.stdout)["checks"] if check["state"] == "fail"]
    assert {check["name"] for check in failed} == {"model", "memory"}


@pytest.mark.parametrize(
    ("server", "advice"),
    [({"cors_origins": ["https://chat.example.com/"]}, "scheme, host and port alone"), ({"host": "0.0.0.0"}, "no server.api_token is set")],
)
def test_the_command_fails_for_what_serve_refuses(tmp_path, monkeypatch, server, advice):
    from typer.testing import CliRunner

    from online_sao.cli import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "online-sao.toml").write_text("[server]\nport = 0\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in server.items()))
    done = CliRunner().invoke(app, ["doctor", "--data-dir", str(tmp_path), "--no-self-check", "--json", "--model", str(tiny_model())])
    assert done.exit_code == 1
    (failed,) = [check for check in json.loads(done.stdout)["checks"] if check["state"] == "fail"]
    assert failed["name"] == "who may call"
    assert advice in failed["advice"]


def test_what_the_data_folder_takes(tmp_path):
    settings = Settings(storage={"data_dir": tmp_path})
    assert "takes" not in doctor.disk(settings).found
    settings.checkpoints_dir.mkdir()
    with (settings.checkpoints_dir / "large").open("wb") as file:
        file.truncate(30_000_000)
    assert "it takes 0.03 GB (policy store 0.00, checkpoints 0.03)" in doctor.disk(settings).found


async def test_a_damaged_database_is_not_fit(settings, tmp_path):
    path = tmp_path / "online_sao.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE filler (text TEXT)")
        connection.executemany("INSERT INTO filler VALUES (?)", [("x" * 500,)] * 500)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert (await doctor_data.database(settings)).state == "ok"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 100_000)
        file.write(b"\xff" * 50_000)
    found = await doctor_data.database(settings)
    assert found.state == "fail"
    assert "backup" in found.advice


def test_a_cut_checkpoint_is_not_fit(tmp_path):
    settings = Settings(storage={"data_dir": tmp_path})
    assert doctor_data.checkpoints(settings).state == "ok"
    folder = settings.checkpoints_dir / "update-000001"
    folder.mkdir(parents=True)
    save_file({"a": torch.zeros(1000)}, folder / "policy.safetensors")
    assert doctor_data.checkpoints(settings).state == "ok"
    with (folder / "policy.safetensors").open("r+b") as file:
        file.truncate(1000)
    found = doctor_data.checkpoints(settings)
    assert (found.state, "update-000001/policy.safetensors" in found.found) == ("fail", True)
