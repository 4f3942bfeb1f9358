"""A real server whose wall clock is set an hour forward and back: leases go on, jobs go on, and no waiting score is lost."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
from server_process import Server, until, user

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
DEADLINE_SECONDS = 900
HOUR = 3600


class JumpingServer(Server):
    def __init__(self, folder: Path) -> None:
        self.offset_file = folder / "offset"
        self.set_clock(0)
        super().__init__(
            folder / "data",
            {
                "LD_PRELOAD": str(LIBRARY),
                "FAKETIME_TIMESTAMP_FILE": str(self.offset_file),
                "FAKETIME_CACHE_DURATION": "1",  # seconds; without a cache every look at the clock reads the file, and a start takes minutes
                "NO_FAKE_STAT": "1",  # files keep their true times: Python looks at thousands while it imports
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "ONLINE_SAO_REWARD__SCORE_DEADLINE_SECONDS": str(DEADLINE_SECONDS),
            },
        )

    def set_clock(self, offset: int) -> None:
        unfinished = self.offset_file.with_suffix(".new")  # the server must never read half a number
        unfinished.write_text(f"{offset:+d}")
        unfinished.rename(self.offset_file)
        self.offset = offset

    def lease_ends_in(self) -> float:
        """Seconds by the server's own clock."""
        (row,) = self.rows("SELECT expires_at FROM leases WHERE name = 'serving'")
        return float(row["expires_at"]) - (time.time() + self.offset)


@pytest.fixture
def server(tmp_path):
    if LIBRARY is None:
        pytest.skip("libfaketime is not installed (Debian: apt-get install faketime)")
    server = JumpingServer(tmp_path).start()
    yield server
    if server.process is not None and server.process.poll() is None:
        server.stop()


def chat(server: Server) -> str:
    body = {"model": "tiny", "messages": user(), "max_tokens": 4}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=60).raise_for_status().json()["id"]


def score(server: Server, completion_id: str) -> dict[str, object]:
    body = {"completion_id": completion_id, "value": 0.5}
    return httpx.post(f"{server.url}/v1/feedback", json=body, trust_env=False, timeout=60).raise_for_status().json()


def test_an_hour_forward_and_two_back(server):
    waiting = [chat(server) for _ in range(4)]
    for offset in (HOUR, -HOUR, 0):
        server.set_clock(offset)
        until(lambda: 0 < server.lease_ends_in() <= 16, seconds=20, what=f"a renewed lease at {offset:+d} s")
        waiting.append(chat(server))
        time.sleep(5)  # more than one run of the deadline job
        assert {server.interaction(completion_id)["state"] for completion_id in waiting} == {"pending"}
        scored = waiting.pop(0)
        assert score(server, scored)["status"] == "queued"
        assert server.interaction(scored)["state"] == "ready"
    assert [score(server, completion_id)["status"] for completion_id in waiting] == ["queued"] * len(waiting)
    assert server.process.poll() is None
    # Said by each of the two schedulers, the server's and the leader's.
    assert server.log().count("the clock was set back") == 2, "two hours back; the others went forward"
    assert server.rows("SELECT COUNT(*) AS n FROM trajectories WHERE state = 'ready'") == [{"n": 7}]
