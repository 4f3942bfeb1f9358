"""Two real server processes on one real PostgreSQL database: both answer, one leads; the leader is killed, comes back, and ends cleanly."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from databases import PostgreSQL
from server_process import Server, until
from service_calls import call, chat, post_score, rows

BATCH = 4
TAKEOVER_SECONDS = 10.0
LEARNING_SECONDS = 400.0


class Pair:
    """Two servers of one data folder. ``scored``: the receipts that were acknowledged."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.servers = [Server(folder / "data", environment, learner=True) for _ in range(2)]
        for server in self.servers:
            server.flags = ["--shared"]
        self.scored: list[str] = []

    def start(self) -> None:
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_ready()

    def stop(self) -> None:
        for server in self.servers:
            if server.process is not None and server.process.poll() is None:
                server.stop()

    def processes(self, server: Server) -> dict[int, dict[str, Any]]:
        return {process["pid"]: process for process in call(server, "GET", "/admin/status").json()["processes"]}

    def leads(self, server: Server, ask: Server | None = None) -> bool:
        assert server.process is not None
        return bool(self.processes(ask or server).get(server.process.pid, {}).get("leading"))

    def roles(self) -> tuple[Server, Server]:
        """(leader, follower)"""
        first, second = self.servers
        return until(lambda: (first, second) if self.leads(first) else (second, first) if self.leads(second) else None, seconds=30, what="a leader")

    def scored_chat(self, server: Server) -> None:
        answer = chat(server)
        if answer.is_success and (receipt := post_score(server, answer.json()["id"])).status_code == 201:
            self.scored.append(receipt.json()["id"])


def fingerprint(server: Server) -> str:
    return str(chat(server).raise_for_status().json()["system_fingerprint"])


def status_of(server: Server, receipt: str) -> str:
    return str(call(server, "GET", f"/v1/feedback/{receipt}").json()["status"])


@pytest.fixture(scope="module")
def pair(postgresql: PostgreSQL, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    environment = {
        "ONLINE_SAO_STORAGE__DATABASE_URL": postgresql.empty(),
        "ONLINE_SAO_POLICY__LORA_RANK": "4",
        "ONLINE_SAO_LEARNING__THREADS": "1",
        "ONLINE_SAO_LEARNING__BATCH_SIZE": str(BATCH),
    }
    pair = Pair(tmp_path_factory.mktemp("shared"), environment)
    try:
        pair.start()
        yield pair
    finally:
        pair.stop()


def test_both_answer_one_leads_and_both_serve_what_is_learned(pair: Pair) -> None:
    leader, follower = pair.roles()
    # A process tells the others of itself every 1.5 s, and while its engine loads it has no version to tell.
    until(lambda: [process["policy_version"] for process in pair.processes(follower).values()] == [0, 0], seconds=30, what="both say their version")
    assert [process["leading"] for process in pair.processes(follower).values()].count(True) == 1
    for server in (leader, follower, follower, follower):
        pair.scored_chat(server)
    assert len(pair.scored) == BATCH
    until(lambda: {status_of(follower, receipt) for receipt in pair.scored} == {"live"}, seconds=LEARNING_SECONDS, what="every score live")
    until(lambda: fingerprint(follower) == fingerprint(leader) == "tiny@v1", seconds=30, what="both on version 1")
    assert "online_sao_serve_leading 1.0" in call(leader, "GET", "/metrics").text
    assert "online_sao_serve_leading 0.0" in call(follower, "GET", "/metrics").text
    assert call(follower, "GET", "/dashboard", follow_redirects=True).status_code == 200


def test_a_leader_that_is_killed_is_followed_within_ten_seconds_and_learning_goes_on(pair: Pair) -> None:
    leader, heir = pair.roles()
    stopping = threading.Event()

    def talk() -> None:
        while not stopping.is_set():
            pair.scored_chat(heir)

    def cut_short() -> None:
        with pytest.raises(httpx.HTTPError):
            chat(leader, max_tokens=1500)

    talkers = [threading.Thread(target=talk), threading.Thread(target=cut_short)]
    for talker in talkers:
        talker.start()
    time.sleep(1.0)
    leader.kill()
    killed = time.monotonic()
    until(lambda: pair.leads(heir), seconds=TAKEOVER_SECONDS, what="another leader")
    took = time.monotonic() - killed
    before = fingerprint(heir)
    until(lambda: fingerprint(heir) > before, seconds=LEARNING_SECONDS, what="a new version, by the new leader's learner")
    stopping.set()
    for talker in talkers:
        talker.join()
    assert took < TAKEOVER_SECONDS
    kept = {row["id"] for row in rows(heir, "SELECT id FROM feedback")}
    assert set(pair.scored) <= kept
    open_rows = "SELECT status, count(*) FROM interactions WHERE status IN ('generating', 'interrupted') GROUP BY status"
    until(lambda: {row["status"]: row["count"] for row in rows(heir, open_rows)} == {"interrupted": 1}, seconds=30, what="the one left-over ended")
    assert len(pair.processes(heir)) == 1


def test_rolling_back_and_pausing_through_a_follower(pair: Pair) -> None:
    leader = next(server for server in pair.servers if server.process is not None and server.process.poll() is None)
    follower = next(server for server in pair.servers if server is not leader)
    follower.start()
    assert pair.leads(leader)
    assert not pair.leads(follower)
    assert call(follower, "POST", "/admin/learner/pause", json={"reason": "looking"}).status_code == 200
    assert call(leader, "GET", "/admin/learner").json()["pause_reason"] == "looking"
    assert call(follower, "POST", "/admin/policies/0/activate", json={"reason": "back"}).status_code == 202
    until(lambda: fingerprint(leader) == fingerprint(follower) == "tiny@v0", seconds=60, what="both back on version 0")
    found = call(follower, "GET", "/admin/rollbacks").json()["data"][0]
    assert (found["to_version"], found["problem"]) == (0, None)


def learners(server: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in server.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # of one that has ended nothing can be read
            found += [child] if "learn" in child.cmdline() else []
    return found


def test_a_leader_that_was_frozen_finds_another_leading_and_follows(pair: Pair) -> None:
    """Nobody can know that it is not dead: its lease runs out. When it runs again it stops a leader's work, its learner included."""
    leader, heir = pair.roles()
    assert leader.process is not None
    frozen = psutil.Process(leader.process.pid)
    frozen.suspend()
    try:
        until(lambda: pair.leads(heir), seconds=TAKEOVER_SECONDS, what="another leader")
    finally:
        frozen.resume()
    until(lambda: frozen.pid in pair.processes(leader) and not pair.leads(leader), seconds=60, what="following")
    until(lambda: not learners(frozen), seconds=30, what="no learner of the follower")
    assert pair.leads(heir)
    assert chat(leader).status_code == chat(heir).status_code == 200
    assert rows(heir, "SELECT count(*) FROM interactions WHERE status = 'generating'")[0]["count"] == 0


def test_a_leader_that_ends_hands_over_at_once(pair: Pair) -> None:
    leader, follower = pair.roles()
    leader.stop()
    until(lambda: pair.leads(follower), seconds=5, what="another leader")
    assert chat(follower).status_code == 200
    assert len(pair.processes(follower)) == 1
