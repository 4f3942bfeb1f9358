"""A real PostgreSQL server that goes away under real traffic: answers go on while their rows can be kept, and every row is in the database
afterwards, once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from databases import PostgreSQL
from server_process import Server, until, user
from service_calls import call, chat, post_score, rows, score

AWAY_SECONDS = 30.0
LONG = {"model": "tiny", "messages": user(), "max_tokens": 400, "stream": True, "temperature": 1.0}


@pytest.fixture(scope="module")
def server(postgresql: PostgreSQL, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from serving(postgresql, tmp_path_factory.mktemp("server"))


def serving(postgresql: PostgreSQL, folder: Path, environment: dict[str, str] | None = None) -> Iterator[Server]:
    server = Server(folder / "data", {"ONLINE_SAO_STORAGE__DATABASE_URL": postgresql.empty(), **(environment or {})}).start()
    yield server
    if server.process is not None and server.process.poll() is None:
        server.stop()


@pytest.fixture
def small(postgresql: PostgreSQL, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server whose spool has room for as many bytes as the test says."""
    yield from serving(postgresql, tmp_path, {"ONLINE_SAO_STORAGE__SPOOL_BYTES": request.param})


@contextmanager
def away(postgresql: PostgreSQL) -> Iterator[None]:
    postgresql.crash()
    try:
        yield
    finally:
        postgresql.come_back()


def ready(server: Server) -> dict[str, Any]:
    return dict(call(server, "GET", "/readyz").json())


def back(server: Server) -> None:
    until(lambda: (found := ready(server))["status"] == "ready" and found["spool"]["records"] == 0, seconds=60, what="ready, the spool written")


def spool_files(server: Server) -> list[Path]:
    return sorted((server.data_dir / "spool").glob("*"))


def logged(server: Server) -> dict[str, dict[str, Any]]:
    """Completion → its row, which there must be one of."""
    query = "SELECT i.*, t.state, t.reason FROM interactions i LEFT JOIN trajectories t ON t.interaction_id = i.id ORDER BY i.id"
    found = rows(server, query)
    by_id = {row["completion_id"]: row for row in found}
    assert len(by_id) == len(found)
    return by_id


class Talkers:
    """Clients that chat and score without a pause, and remember what they were told."""

    def __init__(self, server: Server, count: int = 3) -> None:
        self.answered: dict[str, str] = {}
        self.scored: dict[str, str] = {}
        self.refused: list[tuple[int, str, str | None]] = []
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._talk) for _ in range(count)]

    def __enter__(self) -> Talkers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _talk(self) -> None:
        while not self._stop.is_set():
            answer = chat(self._server)
            if not answer.is_success:
                self._note(answer)
                continue
            body = answer.json()
            self.answered[body["id"]] = body["choices"][0]["message"]["content"]
            receipt = post_score(self._server, body["id"])
            if receipt.status_code == 201:
                self.scored[body["id"]] = receipt.json()["id"]
            else:
                self._note(receipt)

    def _note(self, answer: httpx.Response) -> None:
        self.refused.append((answer.status_code, answer.json()["error"]["code"], answer.headers.get("Retry-After")))
        self._stop.wait(0.2)


def test_thirty_seconds_without_a_database(server: Server, postgresql: PostgreSQL) -> None:
    before = chat(server).raise_for_status().json()["id"]
    with Talkers(server) as talkers:
        until(lambda: len(talkers.scored) >= 3, seconds=60)
        with away(postgresql):
            until(lambda: ready(server)["status"] == "degraded", seconds=30, what="degraded")
            told, started, seen = ready(server), time.monotonic(), len(talkers.answered)
            assert "does not answer" in told["missing"]["database"]
            time.sleep(AWAY_SECONDS / 2)
            assert call(server, "GET", "/readyz").status_code == 200
            assert ready(server)["spool"]["records"] > 0
            gauges = call(server, "GET", "/metrics").text
            assert "online_sao_database_up 0.0" in gauges
            assert "online_sao_serve_spool_bytes 0.0" not in gauges
            assert post_score(server, before).status_code == 503
            time.sleep(max(0.0, started + AWAY_SECONDS - time.monotonic()))
            assert len(talkers.answered) >= seen + 3, "answers went on"
        back(server)
        enough = len(talkers.scored) + 3
        until(lambda: len(talkers.scored) >= enough, seconds=60, what="scores again")
    assert talkers.refused, "scores were refused while the database was away"
    assert {(status, code) for status, code, _ in talkers.refused} == {(503, "storage_unavailable")}
    assert all(int(wait or 0) > 0 for _, _, wait in talkers.refused)

    found = logged(server)
    assert {identity: found[identity]["text"] for identity in talkers.answered} == talkers.answered
    assert {found[identity]["status"] for identity in talkers.answered} == {"completed"}
    assert {found[identity]["state"] for identity in talkers.scored} == {"ready"}
    receipts = {row["id"] for row in rows(server, "SELECT id FROM feedback")}
    assert set(talkers.scored.values()) <= receipts
    unscored = next(identity for identity in talkers.answered if identity not in talkers.scored)
    assert score(server, unscored)["status"] == "queued"
    assert spool_files(server) == []
    assert server.process is not None
    assert server.process.poll() is None


def _stream(server: Server, found: dict[str, Any], begun: Callable[[], None] = lambda: None, **body: Any) -> None:
    """Read a stream to its end: its id at once, its text and whether it ended well."""
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json={**LONG, **body}, trust_env=False, timeout=120) as stream:
        found["text"] = ""
        for line in stream.iter_lines():
            if line == "data: [DONE]":
                found["done"] = True
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                if "id" not in found:
                    found["id"] = event["id"]
                    begun()
                for choice in event["choices"]:
                    found["text"] += choice["delta"].get("content") or ""


def test_answers_that_begin_or_end_in_the_gap_are_logged_once(server: Server, postgresql: PostgreSQL) -> None:
    into: dict[str, Any] = {}
    out_of: dict[str, Any] = {}
    first = threading.Thread(target=_stream, args=(server, into))
    second = threading.Thread(target=_stream, args=(server, out_of))
    first.start()
    until(lambda: into.get("id"), seconds=30)
    with away(postgresql):
        first.join()
        short = chat(server).raise_for_status().json()["id"]
        unstored = chat(server, store=False, user="quillfeather").raise_for_status().json()["id"]
        content = b"".join(path.read_bytes() for path in spool_files(server))
        assert unstored.encode() in content
        assert b"quillfeather" not in content, "of what is not to be stored only counts are kept"
        second.start()
        until(lambda: out_of.get("id"), seconds=30)
    second.join()
    back(server)
    found = logged(server)
    for told in (into, out_of):
        assert told["done"]
        assert found[told["id"]]["text"] == told["text"]
        assert (found[told["id"]]["status"], found[told["id"]]["state"]) == ("completed", "pending")
    assert found[short]["status"] == "completed"
    hidden = found[unstored]
    assert (hidden["text"], hidden["token_ids"], hidden["completion_tokens"], hidden["reason"]) == (None, None, 8, "store_false")


def test_a_server_that_is_frozen_is_away_too(server: Server, postgresql: PostgreSQL) -> None:
    """It takes connections and says nothing: no call may hang for longer than it takes to give it up."""
    identity = chat(server).raise_for_status().json()["id"]
    frozen = postgresql.processes()
    for process in frozen:
        process.suspend()
    try:
        started = time.monotonic()
        answer = chat(server).raise_for_status().json()["id"]
        refused = post_score(server, identity)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_unavailable")
        assert time.monotonic() - started < 55
        started = time.monotonic()
        more = [chat(server).raise_for_status().json()["id"] for _ in range(3)]
        assert time.monotonic() - started < 9, "nobody waits for it again and again"
        started = time.monotonic()
        gauges = call(server, "GET", "/metrics").text
        assert time.monotonic() - started < 10, "Prometheus waits no longer"
        assert "online_sao_database_up 0.0" in gauges
        assert "online_sao_learner_up" not in gauges
    finally:
        for process in frozen:
            with suppress(psutil.NoSuchProcess):
                process.resume()
    back(server)
    assert {answer, *more} <= set(logged(server))


def test_killed_with_a_spool_on_disk_nothing_answered_is_lost(server: Server, postgresql: PostgreSQL) -> None:
    cut: dict[str, Any] = {}
    ended_in_it: dict[str, Any] = {}
    last = threading.Thread(target=_stream, args=(server, ended_in_it))
    last.start()
    until(lambda: ended_in_it.get("id"), seconds=30)
    with away(postgresql):
        last.join()
        answered = [chat(server).raise_for_status().json() for _ in range(5)]
        with suppress(httpx.HTTPError):
            _stream(server, cut, begun=server.kill, max_tokens=1500)
        assert "done" not in cut
        (left,) = spool_files(server)
        # And a record that was being written at that instant.
        whole = left.read_bytes()
        left.write_bytes(whole + b'00000000 {"begun":"chatcmpl-torn","choi')
    server.start()
    found = logged(server)
    for body in answered:
        row = found[body["id"]]
        assert (row["status"], row["text"]) == ("completed", body["choices"][0]["message"]["content"])
    assert [identity for identity in found if identity in {body["id"] for body in answered}] == [body["id"] for body in answered], "in order"
    assert found[ended_in_it["id"]]["status"] == "completed"
    assert (found[cut["id"]]["status"], found[cut["id"]]["reason"]) == ("interrupted", "interrupted")
    assert "chatcmpl-torn" not in found
    assert spool_files(server) == []

    # The same spool a second time: as after a crash between the last commit and the removal of the file.
    count = len(found)
    server.stop()
    (server.data_dir / "spool").mkdir(exist_ok=True)
    (server.data_dir / "spool" / "again.spool").write_bytes(whole)
    server.start()
    again = logged(server)
    assert len(again) == count
    assert {identity: row["status"] for identity, row in again.items()} == {identity: row["status"] for identity, row in found.items()}
    assert spool_files(server) == []


@pytest.mark.parametrize("small", ["20000"], indirect=True)
def test_a_full_spool_refuses_and_keeps_what_it_has(small: Server, postgresql: PostgreSQL) -> None:
    server = small
    with away(postgresql):
        answered = []
        while (answer := chat(server)).is_success:
            answered.append(answer.json()["id"])
        assert len(answered) >= 3
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
        assert int(answer.headers["Retry-After"]) > 0
        assert "storage.spool_bytes = 20000" in answer.json()["error"]["message"]
        assert call(server, "GET", "/readyz").status_code == 503
        assert ready(server)["status"] == "not_ready"
        (file,) = spool_files(server)
        assert file.stat().st_size <= 20000
    back(server)
    assert set(answered) <= set(logged(server))
    assert chat(server).status_code == 200


@pytest.mark.parametrize("small", ["0"], indirect=True)
def test_without_a_spool_nothing_is_answered_meanwhile(small: Server, postgresql: PostgreSQL) -> None:
    server = small
    identity = chat(server).raise_for_status().json()["id"]
    with away(postgresql):
        until(lambda: call(server, "GET", "/readyz").status_code == 503, seconds=30)
        assert chat(server).status_code == 503
    until(lambda: call(server, "GET", "/readyz").status_code == 200, seconds=60)
    assert score(server, identity)["status"] == "queued"
