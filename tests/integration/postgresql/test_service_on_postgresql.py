"""The whole service on a real PostgreSQL server: chat, score, update, swap, rollback, erasure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from databases import PostgreSQL
from server_process import Server, until
from service_calls import call, chat, rows, score

BATCH = 4


@pytest.fixture
def server(postgresql: PostgreSQL, tmp_path) -> Iterator[Server]:
    environment = {
        "ONLINE_SAO_STORAGE__DATABASE_URL": postgresql.empty(),
        "ONLINE_SAO_POLICY__LORA_RANK": "4",
        "ONLINE_SAO_LEARNING__THREADS": "1",
        "ONLINE_SAO_LEARNING__BATCH_SIZE": str(BATCH),
    }
    server = Server(tmp_path / "data", environment, learner=True).start()
    yield server
    if server.process is not None and server.process.poll() is None:
        server.stop()


def test_from_a_score_to_live_and_back(server: Server) -> None:
    completions = [chat(server).raise_for_status().json()["id"] for _ in range(BATCH)]
    receipts = [score(server, completion)["id"] for completion in completions]

    def status(receipt: str) -> str:
        return str(call(server, "GET", f"/v1/feedback/{receipt}").json()["status"])

    until(lambda: {status(receipt) for receipt in receipts} == {"live"}, seconds=300, what="every score live")
    assert chat(server).json()["system_fingerprint"] == "tiny@v1"
    assert not (server.data_dir / "online_sao.db").exists()

    assert call(server, "POST", "/admin/policies/0/activate", json={"reason": "back"}).status_code == 202
    until(lambda: chat(server).json()["system_fingerprint"] == "tiny@v0", seconds=60, what="the rollback")
    assert {status(receipt) for receipt in receipts} == {"rolled_back"}

    assert call(server, "DELETE", "/v1/interactions", params={"user": "ada"}).json()["deleted"] is True
    assert rows(server, "SELECT count(*) FROM interactions WHERE text IS NOT NULL")[0]["count"] == 0
    page = call(server, "GET", "/dashboard", follow_redirects=True)
    assert page.status_code == 200
    server.stop()
    server.start()
    assert chat(server).json()["system_fingerprint"] == "tiny@v0"


def test_migrations_by_the_command_line(postgresql: PostgreSQL, tmp_path) -> None:
    url = postgresql.empty()
    command = [sys.executable, "-m", "online_sao.cli", "db", "upgrade"]
    environment = {"ONLINE_SAO_STORAGE__DATABASE_URL": url, "PYTHONPATH": ":".join(sys.path), "PATH": ""}
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
