"""The whole service with its learner placed by Ray: it learns from scores over HTTP, and goes on after the process of its actor was killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from server_process import Server, until, user

BATCH = 4
PATIENCE = 900.0
"""Ray and several imports of torch, on a machine that is busy with other tests."""


@pytest.fixture
def placed(tmp_path: Path) -> Iterator[Callable[[int], Server]]:
    made: list[Server] = []

    def start(ranks: int) -> Server:
        environment = {
            "ONLINE_SAO_POLICY__LORA_RANK": "4",
            "ONLINE_SAO_LEARNING__THREADS": "1",
            "ONLINE_SAO_LEARNING__BATCH_SIZE": str(BATCH),
            "ONLINE_SAO_LEARNING__MICROBATCH_TOKENS": "24",
            "ONLINE_SAO_LEARNING__RANKS": str(ranks),
            "ONLINE_SAO_CLUSTER__PLACE_LEARNER": "true",
            "ONLINE_SAO_CLUSTER__LEARNER_CPUS": "0.5",
            "ONLINE_SAO_EVALUATION__ENABLED": "false",
        }
        made.append(Server(tmp_path / "data", environment, learner=True).start())
        return made[-1]

    yield start
    for server in made:
        if server.process is not None and server.process.poll() is None:
            server.kill()


def learn(server: Server, update: int) -> None:
    """Chats and scores until that update serves."""
    with httpx.Client(base_url=server.url, trust_env=False, timeout=120) as client:
        for number in range(BATCH):
            asked = {"model": "tiny", "messages": user(f"{update} {number}"), "max_tokens": 8}
            answer = client.post("/v1/chat/completions", json=asked).raise_for_status().json()
            client.post("/v1/feedback", json={"completion_id": answer["id"], "value": number % 2}).raise_for_status()
    deadline = time.monotonic() + PATIENCE
    while not server.rows("SELECT 1 FROM policy_versions WHERE version >= ? AND state = 'active'", update):
        assert time.monotonic() < deadline, f"version {update} does not serve:\n{server.log()[-6000:]}"
        time.sleep(1)


def learner_pid(server: Server) -> int | None:
    (row,) = server.rows("SELECT pid, phase FROM learner")
    return row["pid"] if row["phase"] != "stopped" else None


def is_of_ray(process: psutil.Process) -> bool:
    return any("ray" in part for part in process.cmdline()[:1])


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_learns_and_goes_on_after_its_process_was_killed(placed: Callable[[int], Server], ranks: int) -> None:
    server = placed(ranks)
    learn(server, 1)
    first = until(lambda: learner_pid(server), PATIENCE, "a learner")
    assert is_of_ray(psutil.Process(first))
    assert not any("learn" in child.cmdline() for child in psutil.Process(server.process.pid).children()), "there is no child process for it"

    os.kill(first, signal.SIGKILL)
    learn(server, 2)
    second = learner_pid(server)
    assert second != first
    assert [row["update_number"] for row in server.rows("SELECT update_number FROM updates WHERE accepted ORDER BY 1")] == [1, 2]
    assert server.rows("SELECT count(*) AS n FROM trajectories WHERE state = 'trained'")[0]["n"] == 2 * BATCH

    server.stop()
    until(lambda: not psutil.pid_exists(second), 60, "the learner's process ends with the server")
