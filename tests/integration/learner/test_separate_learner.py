"""A learner that is not the server's child: `online-sao learn` beside `serve` with learning.placement = separate, and what the server says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_process import ROOT, START_SECONDS, Server, until, user

BATCH = 4
SILENT_SECONDS = 20.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    environment = {
        "ONLINE_SAO_LEARNING__PLACEMENT": "separate",
        "ONLINE_SAO_LEARNING__BATCH_SIZE": str(BATCH),
        "ONLINE_SAO_LEARNING__THREADS": "1",
        "ONLINE_SAO_POLICY__LORA_RANK": "4",
        "ONLINE_SAO_ALARMS__LEARNER_SILENT_SECONDS": str(SILENT_SECONDS),
        "ONLINE_SAO_ALARMS__POLL_SECONDS": "0.5",
    }
    server = Server(tmp_path / "data", environment, learner=True).start()
    yield server
    if server.process is not None and server.process.poll() is None:
        server.stop()


def learn(server: Server) -> subprocess.Popen[bytes]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("ONLINE_SAO_")}
    environment = {**inherited, **server.environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "online_sao.cli", "learn", "--data-dir", str(server.data_dir)]
    with (server.data_dir / "learner.log").open("ab") as log:
        return subprocess.Popen(command, cwd=server.data_dir, env=environment, stdout=log, stderr=log)


def get(server: Server, path: str) -> Any:
    return httpx.get(f"{server.url}{path}", trust_env=False, timeout=60).raise_for_status().json()


def score_answers(server: Server) -> list[str]:
    receipts = []
    for _ in range(BATCH):
        body = {"model": "tiny", "messages": user(), "max_tokens": 8}
        completion = httpx.post(f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=60).raise_for_status().json()["id"]
        score = {"completion_id": completion, "value": 1.0}
        receipts.append(httpx.post(f"{server.url}/v1/feedback", json=score, trust_env=False, timeout=60).raise_for_status().json()["id"])
    return receipts


def test_the_server_tells_the_truth_about_a_learner_that_is_not_its_child(server: Server) -> None:
    def presence() -> str:
        return str(get(server, "/admin/status")["learner"]["presence"])

    def alarms() -> list[str]:
        return [alarm["kind"] for alarm in get(server, "/admin/alarms?open=true")["data"]]

    assert presence() == "off"
    until(lambda: "learner_silent" in alarms(), seconds=60, what="the alarm that a learner is missing")
    learner = learn(server)
    try:
        until(lambda: presence() == "alive", seconds=START_SECONDS, what="a sign of life")
        until(lambda: "learner_silent" not in alarms(), seconds=60, what="the end of the alarm")
        receipts = score_answers(server)
        until(lambda: {get(server, f"/v1/feedback/{r}")["status"] for r in receipts} == {"live"}, seconds=300, what="every score live")
        second = learn(server)
        assert second.wait(timeout=START_SECONDS) == 3, "there is one learner"
        learner.kill()
        learner.wait()
        until(lambda: presence() == "silent", seconds=90, what="its silence")
        learner = learn(server)
        until(lambda: presence() == "alive", seconds=START_SECONDS, what="the next one")
        learner.terminate()
        assert learner.wait(timeout=120) == 0
        until(lambda: presence() == "off", seconds=60, what="its end")
    finally:
        if learner.poll() is None:
            learner.kill()
            learner.wait()
    assert "learner started" not in server.log()
