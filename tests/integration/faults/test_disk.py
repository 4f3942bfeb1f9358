"""A real server whose disk runs full, and one whose data folder is read-only: clear errors, nothing acknowledged lost, service again with room."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from mounts import fill, read_only, small_disk
from server_process import ROOT, Server, until, user

PATIENCE_SECONDS = 60.0


@pytest.fixture
def server(tmp_path):
    with small_disk(tmp_path / "data", megabytes=24):
        server = Server(tmp_path / "data").start()
        yield server
        if server.process is not None and server.process.poll() is None:
            server.stop()


def chat(server: Server, **body) -> httpx.Response:
    body = {"model": "tiny", "messages": user(), "max_tokens": 4, **body}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=60)


def score(server: Server, completion_id: str, value: float) -> httpx.Response:
    body = {"completion_id": completion_id, "value": value}
    return httpx.post(f"{server.url}/v1/feedback", json=body, trust_env=False, timeout=60)


def check_full(response: httpx.Response) -> None:
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (507, "storage_full", "server_error")
    assert "Free space" in error["message"]
    assert int(response.headers["retry-after"]) > 0


def test_a_full_disk_refuses_clearly_loses_nothing_and_serves_again_with_room(server):
    acknowledged: dict[str, float] = {}
    ids = [chat(server).raise_for_status().json()["id"] for _ in range(6)]
    alarms = until(lambda: httpx.get(f"{server.url}/admin/alarms?open=true", trust_env=False).json()["data"], what="the alarm", seconds=30)
    assert [alarm["kind"] for alarm in alarms] == ["disk_nearly_full"]

    assert score(server, ids[0], 0.9).status_code == 201
    acknowledged[ids[0]] = 0.9
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=_long(), trust_env=False, timeout=120) as stream:
        lines = stream.iter_lines()
        first = json.loads(next(lines).removeprefix("data: "))
        filler = fill(server.data_dir)
        # What is left of the log file's last pages may take a few more rows.
        deadline, value = time.monotonic() + PATIENCE_SECONDS, 0.0
        while (answer := score(server, ids[0], value)).status_code != 507:
            assert answer.status_code in (200, 201)
            acknowledged[ids[0]] = value
            value = (value + 0.001) % 1.0
            assert time.monotonic() < deadline
        check_full(answer)
        refused = chat(server)
        check_full(refused)
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert events[-1] == "[DONE]" or json.loads(events[-1])["error"]["code"] == "storage_full"
        assert any('"storage_full"' in event for event in events), "the row of the running completion could not be completed"

    assert httpx.get(f"{server.url}/v1/interactions/{ids[1]}", trust_env=False).status_code == 200, "what is there can still be read"
    assert httpx.get(f"{server.url}/metrics", trust_env=False).status_code == 200

    filler.unlink()
    until(lambda: score(server, ids[2], 0.5).status_code == 201, seconds=PATIENCE_SECONDS, what="a score on a disk with room")
    assert chat(server).status_code == 200
    late = until(lambda: server.rows("SELECT * FROM interactions WHERE completion_id = ? AND status = 'completed'", first["id"]), seconds=30)
    assert late[0]["completion_tokens"] == 200, "what was sampled while nothing could be written has been written"
    assert server.rows("SELECT 1 FROM interactions WHERE status = 'generating'") == []

    server.kill()
    found = {row["completion_id"]: row["value"] for row in server.rows(_CURRENT)}
    assert found[ids[0]] == acknowledged[ids[0]]
    assert found[ids[2]] == 0.5
    assert {row["completion_id"] for row in server.rows("SELECT completion_id FROM interactions WHERE status = 'completed'")} >= set(ids)


_CURRENT = (
    "SELECT i.completion_id, f.value FROM feedback f JOIN interactions i ON i.id = f.interaction_id "
    "WHERE f.superseded_by IS NULL AND f.refused_reason IS NULL"
)


def _long() -> dict[str, object]:
    return {"model": "tiny", "messages": user(), "max_tokens": 200, "stream": True}


def test_a_read_only_data_folder_is_said_in_one_line(tmp_path, migrated):
    shutil.copy(migrated, tmp_path / "online_sao.db")
    with read_only(tmp_path):
        done = _serve(tmp_path)
    assert done.returncode == 2, done.stderr
    message = " ".join(done.stderr.split())
    assert "Traceback" not in message
    assert "cannot be opened" in message
    assert "can be written" in message
    assert str(tmp_path) in message


def test_a_data_folder_without_any_room_is_said_in_one_line(tmp_path):
    with small_disk(tmp_path / "data", megabytes=1) as folder:
        fill(folder)
        done = _serve(folder)
    assert done.returncode == 2, done.stderr
    message = " ".join(done.stderr.split())
    assert "Traceback" not in message
    assert "full" in message


@pytest.fixture
def migrated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("migrated")
    command = [sys.executable, "-m", "online_sao.cli", "db", "upgrade", "--data-dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True, env=_environment())
    return folder / "online_sao.db"


def _serve(data_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "online_sao.cli", "serve", "--no-learner", "--port", "0", "--data-dir", str(data_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=_environment(), check=False)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
