"""The whole service over replicas, by real processes: a learned version live on both, a replica killed, ends that leave nothing; and joined to a Ray
cluster of several nodes, of which one dies under load."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import service_calls
from server_process import Server, until, user

BATCH = 4
START_SECONDS = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = {
        "ONLINE_SAO_CLUSTER__REPLICAS": "2",
        "ONLINE_SAO_POLICY__LORA_RANK": "4",
        "ONLINE_SAO_LEARNING__THREADS": "1",
        "ONLINE_SAO_LEARNING__BATCH_SIZE": str(BATCH),
        "ONLINE_SAO_EVALUATION__ENABLED": "false",
    }
    server = Server(tmp_path_factory.mktemp("replicas") / "data", environment, learner=True).start()
    yield server
    if server.process is not None and server.process.poll() is None:
        server.stop()


call = partial(service_calls.call, timeout=120)


def chat(server: Server, tokens: int = 8) -> dict[str, Any]:
    answered = call(server, "POST", "/v1/chat/completions", json={"model": "tiny", "messages": user(), "max_tokens": tokens})
    return dict(answered.raise_for_status().json())


def replicas(server: Server) -> list[dict[str, Any]]:
    return list(call(server, "GET", "/admin/status").raise_for_status().json()["engine"]["replicas"])


def serve(server: Server, version: int, count: int = 2) -> bool:
    return [replica["policy_version"] for replica in replicas(server)] == [version] * count


def family(server: Server) -> list[psutil.Process]:
    assert server.process is not None
    return psutil.Process(server.process.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    return not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_from_a_score_to_live_on_both(server: Server) -> None:
    until(lambda: serve(server, 0), seconds=START_SECONDS, what="both replicas")
    for _ in range(BATCH):
        scored = call(server, "POST", "/v1/feedback", json={"completion_id": chat(server)["id"], "value": 1.0})
        scored.raise_for_status()
    until(lambda: serve(server, 1), seconds=START_SECONDS, what="version 1 on both")
    assert chat(server)["system_fingerprint"] == "tiny@v1"
    (update,) = server.rows("SELECT * FROM updates")
    assert '"policy/masked_fraction": 0.0' in update["metrics"], "the replicas' logprobs are those of the learner's own policy"


def test_a_killed_replica_comes_back_on_the_learned_version(server: Server) -> None:
    os.kill(int(replicas(server)[1]["place"].split()[1]), signal.SIGKILL)
    until(lambda: not replicas(server)[1]["serving"], seconds=20, what="that it is said")
    assert call(server, "GET", "/readyz").status_code == 200, "one still serves"
    assert chat(server)["system_fingerprint"] == "tiny@v1"
    until(lambda: serve(server, 1), seconds=START_SECONDS, what="the replacement")


def test_it_ends_in_seconds_and_leaves_nothing(server: Server) -> None:
    left = family(server)
    assert {"gcs_server", "raylet"} <= {process.name() for process in left}
    assert server.stop() < 20
    until(lambda: gone(left), seconds=60, what="the end of every process")


def test_a_killed_service_leaves_nothing_either(server: Server) -> None:
    assert server.process is not None
    if server.process.poll() is not None:
        server.start()
    until(lambda: all(replica["serving"] for replica in replicas(server)), seconds=START_SECONDS, what="both replicas")
    left = family(server)
    working = [process for process in left if process.name() in ("gcs_server", "raylet") or process.name().startswith("ray::EngineHost")]
    assert len(working) == 4
    server.kill()
    until(lambda: gone(working), seconds=30, what="the end of cluster and engines")
    # A helper of Ray's tells the dead head for a minute, a number in its source, that its node has died.
    until(lambda: gone(left), seconds=120, what="the end of every process")


NODES = """
import sys, time
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 * 2**20})
nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20) for _ in range(3)]
print(cluster.address, *(node.all_processes["raylet"][0].process.pid for node in nodes), flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[int]]]:
    """A Ray cluster of a head and three nodes of one CPU each: (its address, the nodes' processes)."""
    for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_worker_niceness": "0"}.items():
        monkeypatch.setenv(name, value)
    process = subprocess.Popen([sys.executable, "-c", NODES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = ""
        while not line[:1].isdigit():  # Ray says this and that before
            line = process.stdout.readline()
            assert line, "the cluster did not start"
        address, *pids = line.split()
        yield address, [int(pid) for pid in pids]
    finally:
        left = psutil.Process(process.pid).children(recursive=True)
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()
        for child in left:
            if child.is_running():
                child.kill()


def kill_node(raylet: int) -> None:
    """As a machine that loses its power: all of it at once."""
    root = psutil.Process(raylet)
    for process in [root, *root.children(recursive=True)]:
        process.kill()


def raylet_of(pid: int, raylets: list[int]) -> int:
    return next(parent.pid for parent in psutil.Process(pid).parents() if parent.pid in raylets)


def test_a_node_that_dies_under_load_loses_nothing_acknowledged(tmp_path: Path, nodes: tuple[str, list[int]]) -> None:
    address, raylets = nodes
    server = Server(tmp_path / "data", {"ONLINE_SAO_CLUSTER__REPLICAS": "2", "ONLINE_SAO_CLUSTER__RAY_ADDRESS": address})
    server.start()
    try:
        until(lambda: serve(server, 0), seconds=START_SECONDS, what="both replicas")
        answered: list[str] = []
        scored: list[str] = []
        refused: list[httpx.Response] = []
        stop = threading.Event()

        def client() -> None:
            while not stop.is_set():
                answer = call(server, "POST", "/v1/chat/completions", json={"model": "tiny", "messages": user(), "max_tokens": 30})
                if not answer.is_success:
                    refused.append(answer)
                    continue
                answered.append(answer.json()["id"])
                receipt = call(server, "POST", "/v1/feedback", json={"completion_id": answered[-1], "value": 0.5})
                if receipt.is_success:
                    scored.append(answer.json()["id"])

        threads = [threading.Thread(target=client) for _ in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(answered) > 8, seconds=60, what="answers")
        victim = int(replicas(server)[0]["place"].split()[1])
        kill_node(raylet_of(victim, raylets))
        killed_at, before = time.monotonic(), len(answered)
        until(lambda: not replicas(server)[0]["serving"], seconds=20, what="that it is said")
        until(lambda: len(answered) >= before + 16, seconds=60, what="more answers")
        assert time.monotonic() - killed_at < 60
        until(lambda: serve(server, 0), seconds=START_SECONDS, what="the replacement on the third node")
        stop.set()
        for thread in threads:
            thread.join()

        assert all(answer.status_code == 503 and "Ask again" in answer.json()["error"]["message"] for answer in refused)
        assert len(refused) <= 8, "only answers that had begun on the dead node"
        rows = {row["completion_id"]: row["status"] for row in server.rows("SELECT completion_id, status FROM interactions")}
        assert {rows[completion] for completion in answered} == {"completed"}
        kept = {row["completion_id"] for row in server.rows("SELECT i.completion_id FROM feedback f JOIN interactions i ON i.id = f.interaction_id")}
        assert set(scored) <= kept
        assert server.stop() < 20
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()
